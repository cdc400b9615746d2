package rabbitmq

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"
)

func TestClassify(t *testing.T) {
	server := func(code int) error { return &amqp.Error{Code: code, Server: true} }
	for _, c := range []struct {
		err   error
		want  class
		story string
	}{
		{nil, retryable, "no error, nothing to give up for"},
		{io.EOF, retryable, "the server was stopped"},
		{net.ErrClosed, retryable, "we cut a call that hung"},
		{amqp.ErrClosed, retryable, "the connection ended under the call"},
		{&amqp.Error{Code: amqp.AccessRefused}, retryable, "made by the client, not the server's word"},
		{amqp.ErrCredentials, refused, "the client says so of any connection that ends during the login"},
		{amqp.ErrVhost, refused, "as above, a step later"},
		{server(amqp.NotAllowed), refused, "no such virtual host, or too many connections just now"},
		{amqp.ErrSASL, terminal, "no mechanism in common"},
		{server(amqp.AccessRefused), terminal, "no right to the queue"},
		{server(amqp.PreconditionFailed), terminal, "a wait queue with another delay"},
		{server(amqp.NotFound), missing, "the queue was deleted"},
		{server(amqp.InternalError), retryable, "a node that is starting, a quorum queue without a leader"},
		{server(amqp.ConnectionForced), retryable, "the server is being stopped"},
		{server(amqp.ResourceLocked), retryable, "somebody else has it to himself"},
		{server(amqp.FrameError), retryable, "a broken connection"},
		{x509.UnknownAuthorityError{}, terminal, "a certificate nobody here trusts"},
		{x509.HostnameError{Certificate: &x509.Certificate{}}, terminal, "another's certificate"},
		{tls.RecordHeaderError{}, terminal, "a port without TLS"},
		{tls.AlertError(42), terminal, "our certificate was refused"},
		{errShared, terminal, "an exclusive source on a shared queue"},
		{errors.New("what"), retryable, "unknown"},
	} {
		require.Equal(t, c.want, classify(c.err), c.story)
		if c.err != nil {
			require.Equal(t, c.want, classify(fmt.Errorf("wrapped: %w", c.err)), c.story)
		}
	}
}
