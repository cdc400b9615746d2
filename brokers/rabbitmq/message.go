package rabbitmq

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/idemq/idemq/consumer"
	amqp "github.com/rabbitmq/amqp091-go"
)

// KeyHeader is the header in which a Publisher sends Message.Key. RabbitMQ has no place for it
// of its own.
const KeyHeader = "message-key"

// Where a message was published, on its copy in a wait queue: it comes back through another exchange.
const (
	exchangeHeader = "idemq-exchange"
	routingHeader  = "idemq-routing-key"
)

// scopeOf is the scope of a queue. Queues of two virtual hosts may have one name.
func scopeOf(vhost, queue string) string {
	if vhost == "/" || vhost == "" {
		return "rabbitmq/" + queue
	}
	return "rabbitmq/" + vhost + "/" + queue
}

// topicOf is where a message was published, as one string, which routeOf takes apart.
func topicOf(exchange, key string) string {
	if exchange == "" && !strings.Contains(key, "/") {
		return key
	}
	return exchange + "/" + key
}

// routeOf is the exchange and routing key of a topic. Without a slash it is a queue, reached
// through the default exchange.
func routeOf(topic string) (exchange, key string) {
	exchange, key, ok := strings.Cut(topic, "/")
	if !ok {
		return "", topic
	}
	return exchange, key
}

// MessageFrom turns a delivery of a channel of your own into a Message, named by the default
// rules, for dedup by hand. Its Scope is yours to set.
func MessageFrom(d amqp.Delivery) *consumer.Message {
	msg := new(consumer.Message)
	fillMessage(msg, &d)
	msg.Raw = d
	msg.Identify(consumer.DefaultRules(), false)
	return msg
}

// fillMessage sets what of msg comes from d. A copy that a wait queue gave back is told, in d, too,
// as what it was at first; then it reports true.
func fillMessage(msg *consumer.Message, d *amqp.Delivery) (unwrapped bool) {
	unwrapped = unwrap(d)
	msg.ID, msg.Topic, msg.Time = d.MessageId, topicOf(d.Exchange, d.RoutingKey), d.Timestamp
	if d.Timestamp.Year() <= 1 { // the client's way to say that there is none
		msg.Time = time.Time{}
	}
	if msg.Body = d.Body; msg.Body == nil {
		msg.Body = []byte{} // the protocol knows no other
	}
	if n := len(d.Headers); n > 0 || d.ContentType != "" {
		msg.Headers = make(map[string]string, n+1)
		if d.ContentType != "" {
			msg.Headers["content-type"] = d.ContentType // which the rule for CloudEvents looks for
		}
		for k, v := range d.Headers {
			msg.Headers[k] = text(v)
		}
		msg.Key = msg.Headers[KeyHeader]
		msg.DeadCause = msg.Headers[consumer.CauseHeader]
	}
	return unwrapped
}

// unwrap takes what Retry has added off a copy, and reports whether d is one.
func unwrap(d *amqp.Delivery) bool {
	exchange, ok := d.Headers[exchangeHeader].(string)
	if !ok {
		return false
	}
	d.Exchange = exchange
	d.RoutingKey, _ = d.Headers[routingHeader].(string)
	h := make(amqp.Table, len(d.Headers))
	for k, v := range d.Headers {
		if k != exchangeHeader && k != routingHeader && !brokerHeader(k) {
			h[k] = v
		}
	}
	d.Headers = h
	return true
}

// brokerHeader reports whether the server writes a header by itself. None may be on a copy: an
// older server takes x-death for its own word and silently drops a message that seems to go
// round in circles.
func brokerHeader(name string) bool {
	switch name {
	case "x-death", "x-delivery-count", "x-acquired-count",
		"x-first-death-exchange", "x-first-death-queue", "x-first-death-reason",
		"x-last-death-exchange", "x-last-death-queue", "x-last-death-reason":
		return true
	}
	return false
}

// steers reports whether the server would deliver a message to further queues for a header. They
// have had theirs.
func steers(name string) bool { return name == "CC" || name == "BCC" }

// copyOf is d as it is published again: all properties, and the headers of the application as
// they came, but nothing that the server would act upon. A time to live would end the copy, too,
// in its wait queue or as a dead letter.
func copyOf(d *amqp.Delivery, user string) amqp.Publishing {
	p := amqp.Publishing{
		Headers: make(amqp.Table, len(d.Headers)+5), ContentType: d.ContentType, ContentEncoding: d.ContentEncoding,
		DeliveryMode: amqp.Persistent, Priority: d.Priority, CorrelationId: d.CorrelationId, ReplyTo: d.ReplyTo,
		MessageId: d.MessageId, Timestamp: d.Timestamp, Type: d.Type, AppId: d.AppId, Body: d.Body,
	}
	if d.Timestamp.Year() <= 1 {
		p.Timestamp = time.Time{}
	}
	if d.UserId == user { // the server refuses another's
		p.UserId = user
	}
	for k, v := range d.Headers {
		if !brokerHeader(k) && !steers(k) {
			p.Headers[k] = v
		}
	}
	return p
}

// text is a header's value as a string.
func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case nil:
		return ""
	case []byte:
		return string(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case int32:
		return strconv.Itoa(int(v))
	case bool:
		return strconv.FormatBool(v)
	case time.Time:
		return v.UTC().Format(time.RFC3339)
	case amqp.Decimal:
		return decimal(v)
	}
	return fmt.Sprint(v)
}

func decimal(d amqp.Decimal) string {
	s := strconv.Itoa(int(d.Value))
	if d.Scale == 0 {
		return s
	}
	return s + "e-" + strconv.Itoa(int(d.Scale))
}

// checkLengths refuses what the client could not write: it would end the connection, and take
// the answers to everybody else's messages with it.
func checkLengths(p *publishing, frame int) error {
	for what, s := range map[string]string{
		"exchange": p.exchange, "routing key": p.key, "message ID": p.MessageId, "correlation ID": p.CorrelationId,
		"content type": p.ContentType, "content encoding": p.ContentEncoding, "reply-to": p.ReplyTo, "type": p.Type, "app ID": p.AppId,
	} {
		if len(s) > maxName {
			return fmt.Errorf("its %s has %d bytes; the protocol allows %d", what, len(s), maxName)
		}
	}
	for name := range maps.Keys(p.Headers) {
		if len(name) > maxName {
			return fmt.Errorf("the name of header %s… has %d bytes; the protocol allows %d", hex.EncodeToString([]byte(name[:8])), len(name), maxName)
		}
	}
	if size, room := tableSize(p.Headers), frame-restSize(p); frame > 0 && size > room {
		return fmt.Errorf("%w: its headers take %d bytes; the server takes %d (frame_max)", errTooLarge, size, room)
	}
	return nil
}

var errTooLarge = errors.New("too large")

// restSize is what of a header frame everything but the headers takes, or a little more.
func restSize(p *publishing) int {
	const fixed = 64 // frame, class, size, flags, numbers and the time
	n := fixed
	for _, s := range [...]string{p.MessageId, p.CorrelationId, p.ContentType, p.ContentEncoding, p.ReplyTo, p.Type, p.AppId, p.UserId, p.Expiration} {
		n += 1 + len(s)
	}
	return n
}

// tableSize is about what t takes on the wire.
func tableSize(t amqp.Table) int {
	n := 4
	for k, v := range t {
		n += 1 + len(k) + valueSize(v)
	}
	return n
}

func valueSize(v any) int {
	switch v := v.(type) {
	case string:
		return 5 + len(v)
	case []byte:
		return 5 + len(v)
	case amqp.Table:
		return 1 + tableSize(v)
	case []any:
		n := 5
		for _, e := range v {
			n += valueSize(e)
		}
		return n
	}
	return 9
}
