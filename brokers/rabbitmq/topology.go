package rabbitmq

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// deliveryLimit is how often a quorum queue of ours delivers one message before it gives it up
// by itself. A retry is a new message to it; what counts are crashes, lost sessions and messages
// given back. Our own limits, of crashes say, come long before it.
const deliveryLimit = 100_000

// noLimit is a dead letter queue's: nothing takes what it would give up, and each redrive that passes a letter over counts.
const noLimit = math.MaxInt32

// Topology is a queue with all that belongs to it, for set-up by a privileged user.
type Topology struct {
	Queue string
	// Bindings are exchanges, which must exist, to routing keys. The default exchange needs none.
	Bindings map[string][]string
	// Classic makes the queue and its dead letter queue classic ones. The wait queues are quorum
	// queues all the same, because only these hand a message on before they forget it. Default: quorum queues.
	Classic bool
	// Exclusive gives the queue a single active consumer, as SourceOptions.Exclusive needs it,
	// and no wait queues.
	Exclusive bool
	// Delays are those of the wait queues; with Exclusive there are none. Default: the source's backoff.
	Delays []time.Duration
	// DeadLetterQueue takes the messages that are given up. Default: Queue + ".dead".
	DeadLetterQueue string
}

// Declare makes t so; running it again changes nothing. What exists with other settings is an
// error: RabbitMQ cannot change the settings of a queue.
func (t Topology) Declare(ctx context.Context, c Cluster) (err error) {
	if err := c.check(); err != nil {
		return err
	}
	t.DeadLetterQueue = cmp.Or(t.DeadLetterQueue, t.Queue+deadSuffix)
	if err := checkQueue(t.Queue, t.DeadLetterQueue, "Topology.DeadLetterQueue"); err != nil {
		return err
	}
	if err := checkDelays(t.Delays, "Topology.Delays"); err != nil {
		return err
	}
	if t.Exclusive && len(t.Delays) > 0 {
		return errors.New("rabbitmq: Topology.Exclusive and Delays are both set: a message in a wait queue would lose its place, so an exclusive source uses none; leave Delays unset")
	}
	var cs conns
	defer cs.cut(true)
	l, err := c.connect(ctx, &cs, 0, "idemq topology "+t.Queue)
	if err != nil {
		return fmt.Errorf("rabbitmq: topology of %s: %w", t.Queue, err)
	}
	defer l.end(ctx)
	for _, q := range t.queues() {
		if err := l.declare(ctx, q); err != nil {
			return fmt.Errorf("rabbitmq: topology of %s: declare %s: %w", t.Queue, q.name, err)
		}
	}
	for _, exchange := range slices.Sorted(maps.Keys(t.Bindings)) {
		for _, key := range t.Bindings[exchange] {
			if err := l.bind(ctx, t.Queue, key, exchange); err != nil {
				return fmt.Errorf("rabbitmq: topology of %s: bind to %s with %q: %w", t.Queue, exchange, key, err)
			}
		}
	}
	return nil
}

// queue is one to declare.
type queue struct {
	name string
	args amqp.Table
}

// queues are t's, those first that others hand messages to.
func (t Topology) queues() []queue {
	qs := []queue{deadQueue(t.DeadLetterQueue, t.Classic), t.main()}
	if t.Exclusive {
		return qs
	}
	delays := t.Delays
	if len(delays) == 0 {
		delays = defaults.Backoff
	}
	for _, d := range ladder(delays) {
		qs = append(qs, waitQueue(t.Queue, d))
	}
	return qs
}

// main is the consumed queue. What a quorum queue gives up by itself, because a policy that no
// client can see has lowered its limit, goes to the dead letter queue, too, instead of nowhere.
func (t Topology) main() queue {
	args := amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic}
	if !t.Classic {
		args = handsOn(t.DeadLetterQueue)
		args["x-delivery-limit"] = int64(deliveryLimit)
	}
	if t.Exclusive {
		args[amqp.SingleActiveConsumerArg] = true
	}
	return queue{t.Queue, args}
}

// waitQueue keeps messages for d and then hands them back to the queue they are named after. The
// default exchange reaches a queue by its name, so no binding can be missing.
func waitQueue(name string, d time.Duration) queue {
	args := handsOn(name)
	args[amqp.QueueMessageTTLArg] = d.Milliseconds()
	return queue{name + ".wait." + short(d), args}
}

// handsOn are the settings of a quorum queue that forgets a message it hands on only when target
// has confirmed it. The server asks for rejecting, instead of dropping, at a length limit then.
func handsOn(target string) amqp.Table {
	return amqp.Table{
		amqp.QueueTypeArg:           amqp.QueueTypeQuorum,
		amqp.QueueOverflowArg:       amqp.QueueOverflowRejectPublish,
		"x-dead-letter-exchange":    "",
		"x-dead-letter-routing-key": target,
		"x-dead-letter-strategy":    "at-least-once",
	}
}

func deadQueue(name string, classic bool) queue {
	if classic {
		return queue{name, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeClassic}}
	}
	return queue{name, amqp.Table{amqp.QueueTypeArg: amqp.QueueTypeQuorum, "x-delivery-limit": int64(noLimit)}}
}

// ladder is ds as wait queues have them: whole milliseconds, ascending, each once.
func ladder(ds []time.Duration) []time.Duration {
	l := make([]time.Duration, 0, len(ds))
	for _, d := range ds {
		l = append(l, max(time.Millisecond, (d+time.Millisecond-1).Truncate(time.Millisecond)))
	}
	slices.Sort(l)
	return slices.Compact(l)
}

// declare makes q, or finds it as it should be. A refusal closes the channel, so each has its own.
func (l *link) declare(ctx context.Context, q queue) error {
	return l.once(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclare(q.name, true, false, false, false, q.args)
		return err
	})
}

// isDeadQueue reports whether a queue is as Topology, and sources, declare dead letter queues.
func (l *link) isDeadQueue(ctx context.Context, name string) (bool, error) {
	for _, classic := range []bool{false, true} {
		var e *amqp.Error
		if err := l.declare(ctx, deadQueue(name, classic)); err == nil {
			return true, nil
		} else if !errors.As(err, &e) {
			return false, err
		}
	}
	return false, nil
}

// exists finds q whatever its settings.
func (l *link) exists(ctx context.Context, name string) error {
	return l.once(ctx, func(ch *amqp.Channel) error {
		_, err := ch.QueueDeclarePassive(name, true, false, false, false, nil)
		return err
	})
}

func (l *link) bind(ctx context.Context, queue, key, exchange string) error {
	return l.once(ctx, func(ch *amqp.Channel) error { return ch.QueueBind(queue, key, exchange, false, nil) })
}

// once runs f with a channel of its own.
func (l *link) once(ctx context.Context, f func(ch *amqp.Channel) error) error {
	ch, err := l.channel(ctx)
	if err != nil {
		return err
	}
	return l.call(ctx, func() error {
		if err := f(ch); err != nil {
			return err
		}
		return ch.Close()
	})
}
