package chaos

import (
	"log/slog"
	"testing"
	"time"

	"github.com/idemq/idemq/consumer"
)

// broker is a topic or queue on a real server, as a plain client or an admin sees it.
type broker interface {
	// publish sends ms in their order, each to its partition where there are any.
	publish(t *testing.T, ms []published)
	// left is how many messages are not acknowledged, as far as the server tells: what it is late
	// with comes back when the consumers have ended.
	left() (int64, error)
	deadLetters() (int64, error)
	// restart kills the server and starts it again.
	restart()
}

// published is one delivery on the topic.
type published struct {
	id        string
	partition int
}

// kind is a broker, and how its test is run.
type kind struct {
	name    string
	start   func(t *testing.T, s *childSpec, partitions int) broker // on the shared server; fills s.Brokers
	own     func(t *testing.T, s *childSpec, partitions int) broker // on a server of the test's own; nil: no test restarts it
	open    func(s *childSpec, log *slog.Logger) (consumer.Source, error)
	ordered bool // per partition

	messages int           // of a full run
	part     int           // of another one
	work     time.Duration // of one message
	backoff  time.Duration // before the second attempt
	gap      time.Duration // between kills, at least: what a kill holds up is over then
	later    time.Duration // for how long the broker may keep a message where left does not count it
}

func kinds() []kind {
	return []kind{
		{name: "kafka", start: startKafka, open: openKafka, ordered: true,
			messages: 50_000, part: 10_000, work: 12 * time.Millisecond, backoff: 20 * time.Millisecond, gap: 2*timeouts + 500*time.Millisecond},
		{name: "rabbitmq", start: startRabbitMQ, own: startOwnRabbitMQ, open: openRabbitMQ,
			messages: 6_500, part: 2500, work: 250 * time.Millisecond, backoff: rabbitDelays[0], gap: timeouts + 500*time.Millisecond, later: rabbitDelays[1] + time.Second},
		{name: "rocketmq", start: startRocketMQ, own: startOwnRocketMQ, open: openRocketMQ,
			messages: 6_500, part: 2500, work: 250 * time.Millisecond, backoff: time.Second, gap: timeouts + 500*time.Millisecond, later: 3 * time.Second},
	}
}

func kindOf(name string) kind {
	for _, k := range kinds() {
		if k.name == name {
			return k
		}
	}
	return kind{}
}
