package kafka

import (
	"context"
	"errors"

	"github.com/segmentio/kafka-go"

	"github.com/idemq/idemq/outbox"
)

// SendAsIs sends ms with all of their headers, as a tool does that copies a dead letter back.
func (p *Publisher) SendAsIs(ctx context.Context, ms []outbox.Message) error {
	out, errs := make([]kafka.Message, len(ms)), make([]error, len(ms))
	for i := range ms {
		out[i] = recordOf(&ms[i])
	}
	return errors.Join(p.send(ctx, p.producer, out, errs), errors.Join(errs...))
}

// Cut breaks every connection that s has.
func (s *Source) Cut() {
	s.conns.cut(false)
	s.others.cut(false)
}
