package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/segmentio/kafka-go"
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
		{"the coordinator loads its offsets after a restart", kafka.GroupLoadInProgress, retryable},
		{"the coordinator has moved", kafka.NotCoordinatorForGroup, retryable},
		{"the group is forming", kafka.RebalanceInProgress, retryable},
		{"evicted while the process was stopped", kafka.UnknownMemberId, retryable},
		{"another member still offers other balancers", kafka.InconsistentGroupProtocol, retryable},
		{"a replica is missing", kafka.NotEnoughReplicas, retryable},
		{"an unknown fault of the broker", kafka.Unknown, retryable},
		{"the leader has moved", kafka.NotLeaderForPartition, stale},
		{"no leader is elected yet", kafka.LeaderNotAvailable, stale},
		{"the topic is not there, or not yet known", kafka.UnknownTopicOrPartition, stale},
		{"the leader was elected anew", kafka.FencedLeaderEpoch, stale},
		{"wrong password", kafka.SASLAuthenticationFailed, terminal},
		{"the mechanism is not enabled", kafka.UnsupportedSASLMechanism, terminal},
		{"no right to the group", kafka.GroupAuthorizationFailed, terminal},
		{"no right to the topic", kafka.TopicAuthorizationFailed, terminal},
		{"session timeout outside the broker's bounds", kafka.InvalidSessionTimeout, terminal},
		{"a topic name that cannot be", kafka.InvalidTopic, terminal},
		{"the broker is older than the compression", kafka.UnsupportedCompressionType, terminal},
		{"the certificate is of an unknown authority", x509.UnknownAuthorityError{}, terminal},
		{"the certificate is of another host", x509.HostnameError{Certificate: new(x509.Certificate)}, terminal},
		{"the listener speaks no TLS", tls.RecordHeaderError{Msg: "first record does not look like a TLS handshake"}, terminal},
	} {
		t.Run(c.why, func(t *testing.T) {
			require.Equal(t, c.want, classify(c.err))
			require.Equal(t, c.want, classify(fmt.Errorf("kafka: wrapped: %w", c.err)))
		})
	}
}

func TestLostMembershipIsToldFromAFaultOfTheBroker(t *testing.T) {
	for _, err := range []error{kafka.IllegalGeneration, kafka.UnknownMemberId, kafka.RebalanceInProgress} {
		require.True(t, lostMembership(err), err)
	}
	require.False(t, lostMembership(kafka.NotCoordinatorForGroup))
	require.False(t, lostMembership(io.EOF))
}

func TestUnavailableSaysNothingOfTheRecords(t *testing.T) {
	for _, err := range []error{kafka.NotEnoughReplicas, kafka.LeaderNotAvailable, context.DeadlineExceeded, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}} {
		require.True(t, unavailable(fmt.Errorf("kafka: wrapped: %w", err)), err)
	}
	for _, err := range []error{kafka.UnknownTopicOrPartition, kafka.TopicAuthorizationFailed, kafka.InvalidRecord, kafka.Unknown, io.ErrUnexpectedEOF} {
		require.False(t, unavailable(fmt.Errorf("kafka: wrapped: %w", err)), err)
	}
}
