package rocketmq

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
)

// ErrClosed is what a Source or Publisher answers after its Close, and a TransactionProducer after its Run.
var ErrClosed = errors.New("rocketmq: closed")

// ErrSettled is a second word on one delivery; it changed nothing.
var ErrSettled = errors.New("rocketmq: the delivery is settled already")

var (
	errNoTopic  = errors.New("it does not exist")
	errTooLarge = errors.New("too large")
	errNoBroker = errors.New("no broker takes messages for it")
)

// class is what an error means for what was tried.
type class int

const (
	retryable class = iota // waiting may help: a server is away, or busy
	stale                  // the route is old: ask again, then repeat
	terminal               // waiting cannot help: somebody must change a setting, a right or the message
)

// classify is the only place that looks into refusals and broken connections.
func classify(err error) class {
	var refusal *Error
	if errors.As(err, &refusal) {
		return classifyCode(refusal.Code)
	}
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		verify    *tls.CertificateVerificationError
		plain     tls.RecordHeaderError // the server speaks no TLS
		alert     tls.AlertError        // the other side refused ours
	)
	switch {
	case errors.As(err, &authority), errors.As(err, &hostname), errors.As(err, &invalid),
		errors.As(err, &verify), errors.As(err, &plain), errors.As(err, &alert),
		errors.Is(err, errTooLarge), errors.Is(err, ErrClosed):
		return terminal
	case errors.Is(err, errNoTopic), errors.Is(err, errNoBroker):
		return stale
	}
	return retryable
}

func classifyCode(code int) class {
	switch code {
	case codeNoPermission, codeIllegalMessage, codeNoGroup:
		return terminal
	case codeNoTopic, codeUnavailable:
		return stale
	}
	return retryable // busy, not flushed, not copied, an error of the broker's own
}

// unavailable reports whether err says nothing of the message: the broker with its queue is away, busy or short of copies.
func unavailable(err error) bool {
	if refused(err) {
		return isCode(err, codeBusy, codeUnavailable, codeFlushDiskTimeout, codeSlaveMissing, codeFlushSlave)
	}
	var op *net.OpError
	return errors.Is(err, errNoBroker) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &op) && op.Op == "dial"
}

// refused reports whether a server answered, although not as wished.
func refused(err error) bool {
	var refusal *Error
	return errors.As(err, &refusal)
}
