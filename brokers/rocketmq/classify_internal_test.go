package rocketmq

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClassify(t *testing.T) {
	for _, c := range []struct {
		why  string
		err  error
		want class
	}{
		{"the broker is not there yet", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, retryable},
		{"the broker was restarted in mid-request", io.ErrUnexpectedEOF, retryable},
		{"the network went silent", context.DeadlineExceeded, retryable},
		{"the broker's send queue is full", &Error{Code: codeBusy}, retryable},
		{"stored, but the disk did not keep up", &Error{Code: codeFlushDiskTimeout}, retryable},
		{"stored, but its copy is away", &Error{Code: codeSlaveMissing}, retryable},
		{"stored, but its copy did not keep up", &Error{Code: codeFlushSlave}, retryable},
		{"an exception in the broker", &Error{Code: codeSystemError}, retryable},
		{"the broker is shutting down, or its disk is full", &Error{Code: codeUnavailable}, stale},
		{"the topic was moved, or is not there", &Error{Code: codeNoTopic}, stale},
		{"no name server knows the topic", errNoTopic, stale},
		{"all masters of the topic are away", errNoBroker, stale},
		{"no right to the topic, or the wrong password", &Error{Code: codeNoPermission}, terminal},
		{"a message of more than maxMessageSize", &Error{Code: codeIllegalMessage}, terminal},
		{"the group is not there and may not be created", &Error{Code: codeNoGroup}, terminal},
		{"more headers than a message has room for", errTooLarge, terminal},
		{"closed in mid-call", ErrClosed, terminal},
		{"the certificate is of an unknown authority", x509.UnknownAuthorityError{}, terminal},
		{"the certificate is of another host", x509.HostnameError{Certificate: new(x509.Certificate)}, terminal},
		{"the broker speaks no TLS", tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, terminal},
	} {
		t.Run(c.why, func(t *testing.T) {
			require.Equal(t, c.want, classify(c.err))
			require.Equal(t, c.want, classify(fmt.Errorf("rocketmq: wrapped: %w", c.err)))
		})
	}
}

func TestUnavailableSaysNothingOfTheMessage(t *testing.T) {
	for _, err := range []error{&Error{Code: codeBusy}, &Error{Code: codeSlaveMissing}, errNoBroker, context.DeadlineExceeded, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}} {
		require.True(t, unavailable(fmt.Errorf("rocketmq: wrapped: %w", err)), err)
	}
	for _, err := range []error{errNoTopic, &Error{Code: codeNoTopic}, &Error{Code: codeSystemError}, &Error{Code: codeNoPermission}, errTooLarge, io.ErrUnexpectedEOF} {
		require.False(t, unavailable(fmt.Errorf("rocketmq: wrapped: %w", err)), err)
	}
}
