package rabbitmq_test

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/internal/testenv"
	"github.com/idemq/idemq/outbox"
)

// secureWorld is a server of the test's own that speaks TLS, too, with a certificate of ca's.
func secureWorld(t *testing.T, ca *testenv.Authority) (plain, secure world) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	server := testenv.StartRabbitMQ(t, "listeners.ssl.1 = "+addr,
		"ssl_options.cacertfile = "+ca.CAFile, "ssl_options.certfile = "+ca.CertFile, "ssl_options.keyfile = "+ca.KeyFile)
	plain = worldOn(t, server.URL)
	secure = plain
	secure.url = "amqps://guest:guest@" + strings.Replace(addr, "127.0.0.1", "localhost", 1) + "/"
	secure.tls = &tls.Config{RootCAs: ca.Pool}
	return plain, secure
}

func TestTLSIsSpokenAndCertificatesAreChecked(t *testing.T) {
	t.Parallel()
	ca := testenv.NewAuthority(t)
	plain, w := secureWorld(t, ca)
	w.declare(t)
	for _, err := range publish(t, w.publisher(t, nil), outbox.Message{ID: "a", Topic: w.queue}, outbox.Message{ID: "b", Topic: w.queue}, outbox.Message{ID: "c", Topic: w.queue}) {
		require.NoError(t, err)
	}
	s := w.source(t)
	receive(t, s, 3)
	s.Cut()
	ds := receive(t, s, 3)
	require.NoError(t, ds[0].Retry(t.Context(), delays[0], nil))
	require.NoError(t, ds[1].DeadLetter(t.Context(), 1, errors.New("no")))
	ack(t, ds[1:]...)
	again := receive(t, s, 1)
	require.Equal(t, ds[0].ID, again[0].ID)
	ack(t, again...)
	closeSource(t, s)
	require.Empty(t, plain.look(t, w.queue))
	require.Len(t, plain.look(t, w.queue+".dead"), 1)

	for name, c := range map[string]struct {
		tls  *tls.Config
		url  string
		says string
	}{
		"of another authority":           {&tls.Config{RootCAs: testenv.NewAuthority(t).Pool}, w.url, "certificate signed by unknown authority"},
		"of none of the system's":        {nil, w.url, "certificate signed by unknown authority"},
		"of another name":                {&tls.Config{RootCAs: ca.Pool, ServerName: "elsewhere"}, w.url, "certificate is valid for localhost, not elsewhere"},
		"asked for where there are none": {w.tls, strings.Replace(plain.url, "amqp:", "amqps:", 1), "first record does not look like a TLS handshake"},
	} {
		other := w
		other.url, other.tls = c.url, c.tls
		_, err := other.source(t).Receive(within(t, eventually), 1)
		require.ErrorContains(t, err, "rabbitmq: consume "+w.queue+": connect to ", name)
		require.ErrorContains(t, err, c.says, name)
		require.NotContains(t, err.Error(), "guest", name)
		err = other.publisher(t, nil).Publish(within(t, eventually), []outbox.Message{{ID: "d", Topic: w.queue}}, make([]error, 1))
		require.ErrorContains(t, err, c.says, name)
	}
}
