package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/idemq/idemq/brokers/rabbitmq"
	"github.com/idemq/idemq/consumer"
)

// rabbitBroker is RabbitMQ: a topic is a quorum queue, reached through the default exchange.
type rabbitBroker struct{ urls []string }

func newRabbit(urls []string) broker { return &rabbitBroker{urls: urls} }

func (r *rabbitBroker) cluster() rabbitmq.Cluster { return rabbitmq.Cluster{URLs: r.urls} }

func (r *rabbitBroker) open(queue, _ string, log *slog.Logger) (consumer.Source, error) {
	return rabbitmq.NewSource(r.cluster(), queue, &rabbitmq.SourceOptions{Logger: log})
}

func (r *rabbitBroker) openShort(queue, _ string, log *slog.Logger) (consumer.Source, error) {
	return rabbitmq.NewSource(r.cluster(), queue, &rabbitmq.SourceOptions{Delays: shortDelays, Logger: log})
}

func (r *rabbitBroker) publisher() (publisher, error) {
	return rabbitmq.NewPublisher(r.cluster(), nil)
}

// create leaves wait and dead letter queues to the source, whose delays they have.
func (r *rabbitBroker) create(ctx context.Context, queue, _ string) error {
	return rabbitmq.Topology{Queue: queue}.Declare(ctx, r.cluster())
}

// queues are a queue and those that the demonstration's source keeps messages in.
func (r *rabbitBroker) queues(queue string) []string {
	qs := []string{queue}
	for _, d := range shortDelays {
		qs = append(qs, queue+".wait."+d.String())
	}
	return qs
}

func (r *rabbitBroker) remove(ctx context.Context, queue, _ string) error {
	return r.on(ctx, func(ch *amqp.Channel) error {
		for _, q := range append(r.queues(queue), queue+".dead") {
			if _, err := ch.QueueDelete(q, false, false, false); err != nil {
				return err
			}
		}
		return nil
	})
}

// left does not count what a consumer holds unacknowledged, which no client is told.
func (r *rabbitBroker) left(ctx context.Context, queue, _ string) (n int64, err error) {
	for _, q := range r.queues(queue) {
		err := r.on(ctx, func(ch *amqp.Channel) error {
			is, err := ch.QueueDeclarePassive(q, true, false, false, false, nil)
			n += int64(is.Messages)
			return err
		})
		if err != nil && !missing(err) {
			return 0, err
		}
	}
	return n, nil
}

// deadLetters takes them out of their queue.
func (r *rabbitBroker) deadLetters(ctx context.Context, queue, _ string) (all []*consumer.Message, err error) {
	err = r.on(ctx, func(ch *amqp.Channel) error {
		for {
			d, ok, err := ch.Get(queue+".dead", true)
			if err != nil || !ok {
				return err
			}
			all = append(all, rabbitmq.MessageFrom(d))
		}
	})
	if missing(err) {
		return nil, nil
	}
	return all, err
}

func missing(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Code == amqp.NotFound
}

// consume gives back what was not handled, to be delivered again at once.
func (r *rabbitBroker) consume(ctx context.Context, queue, _ string, each func(context.Context, string, place) error) error {
	return r.on(ctx, func(ch *amqp.Channel) error {
		if err := ch.Qos(10, 0, false); err != nil {
			return err
		}
		deliveries, err := ch.ConsumeWithContext(ctx, queue, "", false, false, false, false, nil)
		if err != nil {
			return err
		}
		for d := range deliveries {
			at, _ := d.Headers[copyHeader].(string)
			settle := func() error { return d.Ack(false) }
			if each(ctx, d.MessageId, placeIn(at)) != nil {
				settle = func() error { return d.Nack(false, true) }
			}
			if err := settle(); err != nil {
				return err
			}
		}
		return errors.Join(ctx.Err(), errors.New("no more deliveries: the channel was closed"))
	})
}

// on runs f with a channel of a connection of its own.
func (r *rabbitBroker) on(ctx context.Context, f func(ch *amqp.Channel) error) error {
	var errs []error
	for _, url := range r.urls {
		conn, err := amqp.DialConfig(url, amqp.Config{Dial: func(network, addr string) (net.Conn, error) {
			return (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, network, addr)
		}})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		defer conn.Close()
		ch, err := conn.Channel()
		if err != nil {
			return err
		}
		return f(ch)
	}
	return fmt.Errorf("no node of RabbitMQ can be reached: %w", errors.Join(errs...))
}

func (r *rabbitBroker) close() {}
