package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// ErrClosed is what a Source or Publisher answers after its Close.
var ErrClosed = errors.New("kafka: closed")

// ErrSettled is a second word on one delivery; it changed nothing.
var ErrSettled = errors.New("kafka: the delivery is settled already")

// class is what an error of the client means for what was tried.
type class int

const (
	retryable class = iota // waiting may help: the broker is away, a leader moved, a group is forming
	stale                  // the metadata are old: ask again, then repeat
	terminal               // waiting cannot help: somebody must change a setting or a right
)

// classify is the only place that looks into the client's errors.
func classify(err error) class {
	var code kafka.Error
	if errors.As(err, &code) {
		return classifyCode(code)
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

func classifyCode(code kafka.Error) class {
	switch code {
	case kafka.SASLAuthenticationFailed, kafka.UnsupportedSASLMechanism, kafka.IllegalSASLState,
		kafka.TopicAuthorizationFailed, kafka.GroupAuthorizationFailed, kafka.ClusterAuthorizationFailed,
		kafka.SecurityDisabled, kafka.InvalidSessionTimeout, kafka.InvalidGroupId, kafka.InvalidTopic,
		kafka.UnsupportedVersion, kafka.UnsupportedForMessageFormat, kafka.UnsupportedCompressionType:
		return terminal
	case kafka.NotLeaderForPartition, kafka.LeaderNotAvailable, kafka.UnknownTopicOrPartition, kafka.ReplicaNotAvailable,
		kafka.FencedLeaderEpoch, kafka.UnknownLeaderEpoch, kafka.KafkaStorageError, kafka.BrokerNotAvailable,
		kafka.UnknownTopicID:
		return stale
	}
	return retryable
}

// unavailable reports whether err says nothing of the records: their partition takes none at present.
func unavailable(err error) bool {
	var code kafka.Error
	if !errors.As(err, &code) {
		var op *net.OpError
		return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, protocol.ErrNoLeader) || errors.As(err, &op) && op.Op == "dial"
	}
	switch code {
	case kafka.NotEnoughReplicas, kafka.NotEnoughReplicasAfterAppend, kafka.RequestTimedOut, kafka.NotLeaderForPartition, kafka.LeaderNotAvailable,
		kafka.ReplicaNotAvailable, kafka.BrokerNotAvailable, kafka.FencedLeaderEpoch, kafka.UnknownLeaderEpoch, kafka.KafkaStorageError, kafka.NetworkException:
		return true
	}
	return false
}

// lostMembership reports whether a commit failed because the generation is no longer the
// group's: the answer that fences a late member off. The offsets are unharmed.
func lostMembership(err error) bool {
	return errors.Is(err, kafka.IllegalGeneration) || errors.Is(err, kafka.UnknownMemberId) ||
		errors.Is(err, kafka.RebalanceInProgress) || errors.Is(err, kafka.FencedInstanceID)
}

// tooLarge reports whether the broker refused a produce request for its size.
func tooLarge(err error) bool {
	return errors.Is(err, kafka.MessageSizeTooLarge) || errors.Is(err, kafka.RecordListTooLarge)
}
