package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	client "github.com/apache/rocketmq-client-go/v2"
	push "github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/mqadmin"
)

// rocketBroker is RocketMQ.
type rocketBroker struct{ nameServers []string }

func newRocket(nameServers []string) broker { return &rocketBroker{nameServers: nameServers} }

func (r *rocketBroker) cluster() rocketmq.Cluster {
	return rocketmq.Cluster{NameServers: r.nameServers}
}

func (r *rocketBroker) admin() mqadmin.Cluster { return r.nameServers }

func (r *rocketBroker) open(topic, group string, log *slog.Logger) (consumer.Source, error) {
	return rocketmq.NewSource(r.cluster(), group, []string{topic}, &rocketmq.SourceOptions{Logger: log})
}

// openShort needs nothing to be short: the broker tells the group at once when a member's connection ends.
func (r *rocketBroker) openShort(topic, group string, log *slog.Logger) (consumer.Source, error) {
	return r.open(topic, group, log)
}

func (r *rocketBroker) publisher() (publisher, error) {
	return rocketmq.NewPublisher(r.cluster(), nil)
}

// bounces is the topic in which the broker keeps what a push consumer is to get again.
func bounces(group string) string { return "%RETRY%" + group }

// create makes the topic of the bounces, too: the push consumer looks for it every 20 s only.
func (r *rocketBroker) create(ctx context.Context, topic, group string) error {
	if err := r.admin().Create(ctx, topic, partitions); err != nil {
		return err
	}
	return r.admin().Create(ctx, bounces(group), 1)
}

func (r *rocketBroker) remove(ctx context.Context, topic, group string) error {
	return errors.Join(
		r.admin().Delete(ctx, topic, bounces(group), group+"-retry", group+"-dead"),
		r.admin().DeleteGroups(ctx, group, readerOf(group)))
}

// left does not count what the broker keeps for later.
func (r *rocketBroker) left(ctx context.Context, topic, group string) (n int64, err error) {
	for _, topic := range []string{topic, bounces(group), group + "-retry"} {
		left, err := r.admin().Left(ctx, topic, group)
		if err != nil {
			return 0, err
		}
		n += left
	}
	return n, nil
}

func readerOf(group string) string { return group + "-reader" }

// deadLetters reads them as any other topic.
func (r *rocketBroker) deadLetters(ctx context.Context, _, group string) (all []*consumer.Message, err error) {
	n, err := r.admin().Messages(ctx, group+"-dead")
	if err != nil || n == 0 {
		return nil, err
	}
	source, err := rocketmq.NewSource(r.cluster(), readerOf(group), []string{group + "-dead"}, nil)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, source.Close(ctx)) }()
	for int64(len(all)) < n {
		ds, err := source.Receive(ctx, int(n))
		if err != nil {
			return nil, fmt.Errorf("read %s-dead: %w", group, err)
		}
		for i := range ds {
			ds[i].Identify(consumer.DefaultRules(), ds[i].Made)
			all = append(all, ds[i].Message)
		}
	}
	return all, nil
}

// consume is a push consumer: what fails the broker delivers again after a second, from the topic of the bounces.
func (r *rocketBroker) consume(ctx context.Context, topic, group string, each func(context.Context, string, place) error) error {
	rocketmq.SetLogger(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	c, err := client.NewPushConsumer(
		push.WithGroupName(group), push.WithNsResolver(primitive.NewPassthroughResolver(r.nameServers)),
		push.WithInstance(fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())), // else members that look alike are one
		push.WithConsumeFromWhere(push.ConsumeFromFirstOffset), push.WithConsumeGoroutineNums(1))
	if err != nil {
		return err
	}
	err = c.Subscribe(topic, push.MessageSelector{}, func(cb context.Context, ms ...*primitive.MessageExt) (push.ConsumeResult, error) {
		for _, m := range ms {
			if each(ctx, m.GetProperty(rocketmq.IDHeader), placeIn(m.GetProperty(copyHeader))) != nil {
				if c, ok := primitive.GetConcurrentlyCtx(cb); ok {
					c.DelayLevelWhenNextConsume = 1
				}
				return push.ConsumeRetryLater, nil
			}
		}
		return push.ConsumeSuccess, nil
	})
	if err != nil {
		return err
	}
	if err := c.Start(); err != nil {
		return err
	}
	<-ctx.Done()
	return c.Shutdown()
}

func (r *rocketBroker) close() {}
