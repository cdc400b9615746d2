package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/idemq/idemq/outbox"
)

// produce puts sample orders into the topic. Their IDs are new with each call.
func produce(ctx context.Context, c *config, stderr io.Writer) error {
	b, err := c.servers.broker()
	if err != nil {
		return err
	}
	defer b.close()
	making, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	if err := b.create(making, c.topic, c.group); err != nil {
		return err
	}
	batch := time.Now().UTC().Format("20060102-150405.000")
	ms := make([]outbox.Message, c.produce)
	for i := range ms {
		ms[i] = sampleOrder(c.topic, fmt.Sprintf("order-%s-%04d", batch, i+1))
	}
	if err := publish(ctx, b, ms); err != nil {
		return err
	}
	fmt.Fprintf(stderr, "%d orders are in topic %s\n", len(ms), c.topic)
	return nil
}
