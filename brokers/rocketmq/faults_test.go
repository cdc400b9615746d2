package rocketmq_test

import (
	"crypto/tls"
	"errors"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/brokers/rocketmq"
	"github.com/idemq/idemq/internal/testenv"
)

// TestServerOfItsOwn needs a broker that creates topics, asks about half messages thrice and no more, and is killed at the end.
func TestServerOfItsOwn(t *testing.T) {
	t.Parallel()
	server := testenv.StartRocketMQ(t, "autoCreateTopicEnable=true", "transactionTimeOut=300", "transactionCheckInterval=300", "transactionCheckMax=2")
	t.Run("while it is well", func(t *testing.T) {
		t.Run("topic is created where the broker does so", func(t *testing.T) { topicIsCreatedWhereTheBrokerDoesSo(t, server) })
		t.Run("messages that nobody answered for are sent again", func(t *testing.T) { messagesThatNobodyAnsweredForAreSentAgain(t, server) })
		t.Run("retention below what the broker asks is refused", func(t *testing.T) { retentionBelowWhatTheBrokerAsksIsRefused(t, server) })
	})
	t.Run("name server is restarted while messages flow", func(t *testing.T) { nameServerIsRestartedWhileMessagesFlow(t, server) })
	t.Run("broker is killed in mid-run", func(t *testing.T) { brokerIsKilledInMidRun(t, server) })
	t.Run("silent broker is taken for lost until it speaks again", func(t *testing.T) { silentBrokerIsTakenForLost(t, server) })
}

// A stalled machine keeps its connections open and says nothing.
func silentBrokerIsTakenForLost(t *testing.T, server *testenv.RocketMQServer) {
	w := ownWorld(t, server, 1)
	s := w.source(t)
	w.publish(t, "k", "a", "b")
	ds := receive(t, s, 2)
	ack(t, ds[0])
	server.Broker.Pause()
	select {
	case <-ds[1].Lost:
	case <-time.After(40 * time.Second):
		require.Fail(t, "the session of a silent broker is still believed in")
	}
	require.False(t, s.Connected())
	require.NoError(t, ds[1].Ack(t.Context()), "a no-op")
	server.Broker.Resume()
	seen := map[string]bool{}
	for !seen["b"] {
		for _, d := range receive(t, s, 1) {
			seen[string(d.Body)] = true
			ack(t, d)
		}
	}
	require.Eventually(t, s.Connected, eventually, 20*time.Millisecond)
}

const askPull = 11

func TestAnswerThatCannotBeReadStopsItsQueueOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.publish(t, "", "a")
	far, broker := w.behind(t, askPull)
	broker.change(func(body []byte) []byte { return body[:max(len(body)-3, 0)] })
	var l log
	s := far.source(t, func(o *rocketmq.SourceOptions) { o.Logger = l.logger() })
	nothing(t, s, 10*time.Millisecond)
	require.Eventually(t, func() bool { return broker.asked.Load() > 5 }, eventually, step, "it has not asked again")
	require.EqualValues(t, 1, broker.dials.Load(), "the connection is well")
	require.True(t, l.has("what the broker answers to a pull cannot be read, so the queue stands still"))
	require.True(t, l.has("it ends within a message"))
	broker.change(func(body []byte) []byte { return body })
	require.Equal(t, []string{"a"}, bodies(receive(t, s, 1)))
}

func TestBrokerThatHangsUpOnPullsIsSaidAndReadOnceItAnswers(t *testing.T) {
	t.Parallel()
	w := newWorld(t, 1)
	w.publish(t, "", "a")
	far, broker := w.behind(t, askPull)
	broker.change(func(body []byte) []byte { broker.hangUp(); return body })
	var l log
	s := far.source(t, func(o *rocketmq.SourceOptions) { o.Logger = l.logger() })
	nothing(t, s, 10*time.Millisecond)
	require.Eventually(t, func() bool { return broker.dials.Load() > 3 }, eventually, step, "it has not connected again")
	require.True(t, l.has("the connection to a broker is lost, and its queues with it"))
	broker.change(func(body []byte) []byte { return body })
	require.Equal(t, []string{"a"}, bodies(receive(t, s, 1)))
}

// mqadmin resetOffsetByTime on a group whose members are running.
func TestOperatorsResetOfThePositionIsFollowed(t *testing.T) {
	w := newWorld(t, 1)
	s := w.source(t)
	w.publish(t, "k", "a", "b", "c")
	ack(t, receive(t, s, 3)...)
	require.Eventually(t, func() bool { return w.committed(t, w.topic, 0) == 3 }, eventually, 20*time.Millisecond)
	require.NoError(t, rocketmq.ResetOffset(within(t, eventually), w.cluster, w.broker, w.group, w.topic, 0, 1))
	w.publish(t, "", "d")
	var got []string
	for len(got) < 3 {
		ds := receive(t, s, 1)
		got = append(got, bodies(ds)...)
		ack(t, ds...)
	}
	if got[0] == "d" { // it was on its way already
		got = append(got[1:], bodies(receive(t, s, 1))...)
	}
	require.Equal(t, []string{"b", "c", "d"}, got)
}

// TestSecuredServer needs a broker with access control and certificates. Servers take theirs from system properties; the broker speaks
// plainly to its name server.
func TestSecuredServer(t *testing.T) {
	ca := testenv.NewAuthority(t)
	t.Setenv("JAVA_TOOL_OPTIONS", "-Dtls.test.mode.enable=false -Dtls.server.mode=permissive -Dtls.server.certPath="+ca.CertFile+" -Dtls.server.keyPath="+ca.KeyFile)
	server := testenv.StartRocketMQ(t, "authenticationEnabled=true",
		"authenticationProvider=org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
		"authenticationMetadataProvider=org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
		`initAuthenticationUser={"username":"idemq","password":"secret-of-tests"}`,
		`innerClientAuthenticationCredentials={"accessKey":"idemq","secretKey":"secret-of-tests"}`)
	secured := func(t *testing.T) world {
		w := worldAt([]string{server.Addr}, server.BrokerAddr)
		w.cluster.Credentials = primitive.Credentials{AccessKey: "idemq", SecretKey: "secret-of-tests"}
		w.create(t, w.topic, 1)
		return w
	}
	t.Run("credentials are checked by the broker", func(t *testing.T) { credentialsAreChecked(t, secured(t)) })
	t.Run("TLS is spoken and certificates are checked", func(t *testing.T) { certificatesAreChecked(t, secured(t), ca) })
}

func credentialsAreChecked(t *testing.T, w world) {
	w.publish(t, "", "a")
	s := w.source(t)
	d := receive(t, s, 1)[0]
	require.NoError(t, d.Retry(t.Context(), time.Second, nil))
	ack(t, receive(t, s, 1)...)

	wrong := w
	wrong.cluster.Credentials.SecretKey = "another"
	_, err := wrong.source(t).Receive(within(t, eventually), 1)
	require.ErrorContains(t, err, "refused with code 16: ")
	p, err := rocketmq.NewPublisher(wrong.cluster, nil)
	require.NoError(t, err)
	defer p.Close()
	begun := time.Now()
	errs := publish(t, p, w.messages("b")...)
	require.ErrorContains(t, errs[0], "refused with code 16: ")
	require.Less(t, time.Since(begun), 5*time.Second, "waiting would not help")
}

func certificatesAreChecked(t *testing.T, w world, ca *testenv.Authority) {
	w.cluster.TLS = &tls.Config{RootCAs: ca.Pool}
	w.publish(t, "", "a", "b")
	s := w.source(t)
	receive(t, s, 2)
	s.Cut()
	ds := receive(t, s, 2)
	require.NoError(t, ds[0].Retry(t.Context(), time.Second, nil))
	require.NoError(t, ds[1].DeadLetter(t.Context(), 1, errors.New("no")))
	ack(t, ds[1])
	again := receive(t, s, 1)
	require.Equal(t, bodies(ds[:1]), bodies(again))
	ack(t, again...)

	w.cluster.TLS = &tls.Config{RootCAs: testenv.NewAuthority(t).Pool}
	_, err := w.source(t).Receive(within(t, eventually), 1)
	var unknown *tls.CertificateVerificationError
	require.ErrorAs(t, err, &unknown, "waiting would not help")
	p := w.publisher(t)
	require.ErrorAs(t, p.Publish(within(t, eventually), w.messages("c"), make([]error, 1)), &unknown)
	w.cluster.TLS = &tls.Config{RootCAs: ca.Pool, ServerName: "elsewhere"}
	_, err = w.source(t).Receive(within(t, eventually), 1)
	require.ErrorContains(t, err, "certificate is valid for localhost, not elsewhere")
}
