package consumer

import (
	"errors"
	"time"
)

// ErrDrained is the cause of a handler's cancelled context when the drain timeout has passed.
var ErrDrained = errors.New("consumer: drain timeout")

// errNoID is the cause of dead letters that no rule could name.
var errNoID = errors.New("no rule of Options.MessageID names this message")

type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// Permanent marks err as final: the message is dead-lettered now. nil stays nil.
func Permanent(err error) error {
	if err == nil {
		return nil
	}
	return permanentError{err}
}

type retryAfterError struct {
	error
	after time.Duration
}

func (e retryAfterError) Unwrap() error { return e.error }

// RetryAfter asks for the next attempt after d, or the broker's next longer delay. A delay beyond the broker's longest is
// cut to that, and so is one beyond the longest of Policy.Backoff where messages wait in memory (Kafka, RabbitMQ's
// SourceOptions.Exclusive). It counts as an attempt. nil stays nil.
func RetryAfter(d time.Duration, err error) error {
	if err == nil {
		return nil
	}
	return retryAfterError{err, max(d, 0)}
}
