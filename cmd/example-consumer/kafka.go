package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	kafkago "github.com/segmentio/kafka-go"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
)

const partitions = 4

// kafkaBroker is Kafka, seen through a plain client where idemq is not the subject.
type kafkaBroker struct {
	brokers []string
	client  *kafkago.Client
}

func newKafka(brokers []string) broker {
	return &kafkaBroker{brokers: brokers, client: &kafkago.Client{Addr: kafkago.TCP(brokers...), Timeout: 10 * time.Second, Transport: &kafkago.Transport{MetadataTTL: time.Second}}}
}

func (c *kafkaBroker) cluster() kafka.Cluster { return kafka.Cluster{Brokers: c.brokers} }

// open: orders of different customers may be handled at once, so the order is kept per key.
func (c *kafkaBroker) open(topic, group string, log *slog.Logger) (consumer.Source, error) {
	return kafka.NewSource(c.cluster(), group, []string{topic}, &kafka.SourceOptions{LaneByKey: true, Logger: log})
}

func (c *kafkaBroker) openShort(topic, group string, log *slog.Logger) (consumer.Source, error) {
	return kafka.NewSource(c.cluster(), group, []string{topic}, &kafka.SourceOptions{SessionTimeout: sessionTimeout, Logger: log})
}

func (c *kafkaBroker) publisher() (publisher, error) { return kafka.NewPublisher(c.cluster(), nil) }

func (c *kafkaBroker) close() { c.client.Transport.(*kafkago.Transport).CloseIdleConnections() }

// create waits until the topic has its leaders.
func (c *kafkaBroker) create(ctx context.Context, topic, _ string) error {
	res, err := c.client.CreateTopics(ctx, &kafkago.CreateTopicsRequest{Topics: []kafkago.TopicConfig{{Topic: topic, NumPartitions: partitions, ReplicationFactor: -1}}})
	if err == nil {
		err = res.Errors[topic]
	}
	if err != nil && !errors.Is(err, kafkago.TopicAlreadyExists) {
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

func (c *kafkaBroker) remove(ctx context.Context, topic, _ string) error {
	_, err := c.client.DeleteTopics(ctx, &kafkago.DeleteTopicsRequest{Topics: []string{topic, topic + ".dlt"}})
	return err
}

// ends are the offsets after the last record, by partition.
func (c *kafkaBroker) ends(ctx context.Context, topic string) (map[int]int64, error) {
	meta, err := c.client.Metadata(ctx, &kafkago.MetadataRequest{Topics: []string{topic}})
	if err != nil {
		return nil, err
	}
	if len(meta.Topics) != 1 || meta.Topics[0].Error != nil {
		return nil, fmt.Errorf("topic %s: %w", topic, errors.Join(kafkago.UnknownTopicOrPartition, meta.Topics[0].Error))
	}
	var ask []kafkago.OffsetRequest
	for _, p := range meta.Topics[0].Partitions {
		ask = append(ask, kafkago.LastOffsetOf(p.ID))
	}
	res, err := c.client.ListOffsets(ctx, &kafkago.ListOffsetsRequest{Topics: map[string][]kafkago.OffsetRequest{topic: ask}})
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

// left is how many records the group has not committed yet.
func (c *kafkaBroker) left(ctx context.Context, topic, group string) (int64, error) {
	ends, err := c.ends(ctx, topic)
	if err != nil {
		return 0, err
	}
	ps := make([]int, 0, len(ends))
	for p := range ends {
		ps = append(ps, p)
	}
	res, err := c.client.OffsetFetch(ctx, &kafkago.OffsetFetchRequest{GroupID: group, Topics: map[string][]int{topic: ps}})
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

// deadLetters finds none where there is no such topic.
func (c *kafkaBroker) deadLetters(ctx context.Context, topic, _ string) (all []*consumer.Message, err error) {
	topic += ".dlt"
	ends, err := c.ends(ctx, topic)
	if errors.Is(err, kafkago.UnknownTopicOrPartition) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
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

func (c *kafkaBroker) readPartition(ctx context.Context, topic string, p int, end int64) (ms []*consumer.Message, err error) {
	r := kafkago.NewReader(kafkago.ReaderConfig{Brokers: c.brokers, Topic: topic, Partition: p, MaxWait: 100 * time.Millisecond})
	defer r.Close()
	if err := r.SetOffset(kafkago.FirstOffset); err != nil {
		return nil, err
	}
	for {
		m, err := r.ReadMessage(ctx)
		if err != nil {
			return nil, err
		}
		ms = append(ms, kafka.MessageFrom(m))
		if m.Offset >= end-1 {
			return ms, nil
		}
	}
}

// consume begins anew after an error, at the last position that was committed.
func (c *kafkaBroker) consume(ctx context.Context, topic, group string, each func(context.Context, string, place) error) error {
	r := kafkago.NewReader(kafkago.ReaderConfig{
		Brokers: c.brokers, GroupID: group, Topic: topic, StartOffset: kafkago.FirstOffset,
		SessionTimeout: sessionTimeout, RebalanceTimeout: sessionTimeout, HeartbeatInterval: sessionTimeout / 10,
		JoinGroupBackoff: 200 * time.Millisecond, MaxWait: 100 * time.Millisecond,
	})
	defer r.Close()
	for {
		m, err := r.FetchMessage(ctx)
		if err != nil {
			return err
		}
		if err := each(ctx, kafkaHeader(&m, kafka.IDHeader), placeIn(kafkaHeader(&m, copyHeader))); err != nil {
			return err
		}
		if err := r.CommitMessages(ctx, m); err != nil {
			return err
		}
	}
}

func kafkaHeader(m *kafkago.Message, name string) string {
	for _, h := range m.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
