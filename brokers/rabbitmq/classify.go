package rabbitmq

import (
	"crypto/tls"
	"crypto/x509"
	"errors"

	amqp "github.com/rabbitmq/amqp091-go"
)

// ErrClosed is what a Source or Publisher answers after its Close.
var ErrClosed = errors.New("rabbitmq: closed")

// ErrSettled is a second word on one delivery; it changed nothing.
var ErrSettled = errors.New("rabbitmq: the delivery is settled already")

// ErrUnroutable is the server's answer to a message that no queue takes. It is final until
// somebody declares or binds one.
var ErrUnroutable = errors.New("no queue takes the message")

// ErrRefused is the answer of a queue that does not take a message, most often because it is
// full and rejects instead of dropping.
var ErrRefused = errors.New("the queue refused the message")

// errBlocked is why nothing is published while the server is low on memory or disk space.
var errBlocked = errors.New("the server has blocked publishers")

// errShared is final: RabbitMQ cannot change the settings of a queue.
var errShared = errors.New("SourceOptions.Exclusive is set, but the queue has no single active consumer, so two processes would share its messages out and lose their order; declare it anew with Topology.Exclusive, or leave Exclusive unset")

// errUnknown is the fate of what was under way when its connection ended.
var errUnknown = errors.New("the connection ended before the server's answer")

// class is what an error of the client means for what was tried.
type class int

const (
	retryable class = iota // waiting may help: the server is away, a node is starting, a queue is missing
	missing                // what was named does not exist; it may be declared by somebody
	refused                // the login: by a setting, or the connection broke just then
	terminal               // waiting cannot help: somebody must change a setting or a right
)

// classify is the only place that looks into the client's errors.
func classify(err error) class {
	if errors.Is(err, errShared) {
		return terminal
	}
	if errors.Is(err, amqp.ErrCredentials) || errors.Is(err, amqp.ErrVhost) {
		return refused // made by the client of a connection that ended; the server's own reply is another error
	}
	var e *amqp.Error
	if errors.As(err, &e) {
		return classifyReply(e)
	}
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		verify    *tls.CertificateVerificationError
		plain     tls.RecordHeaderError // the listener speaks no TLS
		alert     tls.AlertError        // the other side refused ours
	)
	if errors.As(err, &authority) || errors.As(err, &hostname) || errors.As(err, &invalid) ||
		errors.As(err, &verify) || errors.As(err, &plain) || errors.As(err, &alert) {
		return terminal
	}
	return retryable
}

func classifyReply(e *amqp.Error) class {
	if errors.Is(e, amqp.ErrSASL) {
		return terminal
	}
	if !e.Server {
		return retryable
	}
	switch e.Code {
	case amqp.NotFound:
		return missing
	case amqp.NotAllowed: // no such virtual host, or as many connections as the user may have
		return refused
	case amqp.AccessRefused, // of a right
		amqp.PreconditionFailed, // declared already, otherwise
		amqp.NotImplemented:
		return terminal
	}
	return retryable
}

// ofMessage reports whether the server has refused a publishing for what is in it: it is larger than
// the server takes, or names another user.
func ofMessage(err error) bool {
	var e *amqp.Error
	return errors.As(err, &e) && e.Server && (e.Code == amqp.PreconditionFailed || e.Code == amqp.ContentTooLarge)
}

// channelError reports whether the server has closed a channel for something that was said on it.
func channelError(err error) bool {
	var e *amqp.Error
	if !errors.As(err, &e) || !e.Server {
		return false
	}
	switch e.Code {
	case amqp.NotFound, amqp.AccessRefused, amqp.PreconditionFailed, amqp.ResourceLocked, amqp.ContentTooLarge:
		return true
	}
	return false
}
