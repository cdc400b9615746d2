package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/segmentio/kafka-go"

	idemqkafka "github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/outbox"
)

const partitions = 4

// cluster is the parent's own view of Kafka, through a plain client.
type cluster struct {
	brokers []string
	client  *kafka.Client
}

func newCluster(brokers []string) *cluster {
	return &cluster{brokers: brokers, client: &kafka.Client{Addr: kafka.TCP(brokers...), Timeout: 10 * time.Second, Transport: &kafka.Transport{MetadataTTL: time.Second}}}
}

func (c *cluster) close() { c.client.Transport.(*kafka.Transport).CloseIdleConnections() }

// create makes a topic that is not there yet, and waits until it has its leaders.
func (c *cluster) create(ctx context.Context, topic string) error {
	res, err := c.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: partitions, ReplicationFactor: -1}}})
	if err == nil {
		err = res.Errors[topic]
	}
	if err != nil && !errors.Is(err, kafka.TopicAlreadyExists) {
		return fmt.Errorf("create topic %s: %w", topic, err)
	}
	for {
		if _, err = c.ends(ctx, topic); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("create topic %s: it does not become ready: %w", topic, errors.Join(err, ctx.Err()))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *cluster) remove(ctx context.Context, topics ...string) error {
	_, err := c.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: topics})
	return err
}

// publish sends ms and waits for the confirmation of each.
func (c *cluster) publish(ctx context.Context, ms []outbox.Message) error {
	p, err := idemqkafka.NewPublisher(idemqkafka.Cluster{Brokers: c.brokers}, nil)
	if err != nil {
		return err
	}
	defer p.Close()
	for len(ms) > 0 {
		batch := ms[:min(len(ms), 500)]
		ms = ms[len(batch):]
		errs := make([]error, len(batch))
		if err := p.Publish(ctx, batch, errs); err != nil {
			return err
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return nil
}

// ends are the offsets after the last record, by partition.
func (c *cluster) ends(ctx context.Context, topic string) (map[int]int64, error) {
	meta, err := c.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, err
	}
	if len(meta.Topics) != 1 || meta.Topics[0].Error != nil {
		return nil, fmt.Errorf("topic %s: %w", topic, errors.Join(kafka.UnknownTopicOrPartition, meta.Topics[0].Error))
	}
	var ask []kafka.OffsetRequest
	for _, p := range meta.Topics[0].Partitions {
		ask = append(ask, kafka.LastOffsetOf(p.ID))
	}
	res, err := c.client.ListOffsets(ctx, &kafka.ListOffsetsRequest{Topics: map[string][]kafka.OffsetRequest{topic: ask}})
	if err != nil {
		return nil, err
	}
	ends := make(map[int]int64)
	for _, p := range res.Topics[topic] {
		if p.Error != nil {
			return nil, p.Error
		}
		ends[p.Partition] = p.LastOffset
	}
	return ends, nil
}

// lag is how many records the group has not committed yet.
func (c *cluster) lag(ctx context.Context, group, topic string) (int64, error) {
	ends, err := c.ends(ctx, topic)
	if err != nil {
		return 0, err
	}
	ps := make([]int, 0, len(ends))
	for p := range ends {
		ps = append(ps, p)
	}
	res, err := c.client.OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: ps}})
	if err == nil {
		err = res.Error
	}
	if err != nil {
		return 0, err
	}
	var lag int64
	for _, p := range res.Topics[topic] {
		if p.Error != nil {
			return 0, p.Error
		}
		lag += ends[p.Partition] - max(p.CommittedOffset, 0)
	}
	return lag, nil
}

// read returns everything that stands in a topic; nothing where there is no such topic.
func (c *cluster) read(ctx context.Context, topic string) ([]kafka.Message, error) {
	ends, err := c.ends(ctx, topic)
	if errors.Is(err, kafka.UnknownTopicOrPartition) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []kafka.Message
	for p, end := range ends {
		if end == 0 {
			continue
		}
		ms, err := c.readPartition(ctx, topic, p, end)
		if err != nil {
			return nil, fmt.Errorf("read %s/%d: %w", topic, p, err)
		}
		all = append(all, ms...)
	}
	return all, nil
}

func (c *cluster) readPartition(ctx context.Context, topic string, p int, end int64) (ms []kafka.Message, err error) {
	r := kafka.NewReader(kafka.ReaderConfig{Brokers: c.brokers, Topic: topic, Partition: p, MaxWait: 100 * time.Millisecond})
	defer r.Close()
	if err := r.SetOffset(kafka.FirstOffset); err != nil {
		return nil, err
	}
	for {
		m, err := r.ReadMessage(ctx)
		if err != nil {
			return nil, err
		}
		ms = append(ms, m)
		if m.Offset >= end-1 {
			return ms, nil
		}
	}
}
