// Package outbox holds the message and the port that broker publishers share.
package outbox

import "context"

// Message is one message to publish.
type Message struct {
	ID      string // consumers deduplicate by it
	Topic   string // topic; on RabbitMQ a queue, or exchange/routing key. Required.
	Key     string // messages of one key are published in the order they were written. Default: no order.
	Headers map[string]string
	Body    []byte
}

// Publisher is the port to a broker: the Publisher of every broker package, or your own.
type Publisher interface {
	// Publish sends ms in order and answers errs[i] for ms[i]; errs is the caller's, of the same
	// length, zeroed. nil means: the broker has it. A returned error means the broker could not
	// be asked, costs no message an attempt and says nothing of any. It must return soon after ctx ends.
	Publish(ctx context.Context, ms []Message, errs []error) error
}
