package kafka_test

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	kafkago "github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/consumer"
)

func TestLateAckDoesNotMoveTheOffsetBack(t *testing.T) {
	everywhere(t, 1, func(t *testing.T, w world) {
		cl := w.client(t)
		produce(t, cl, 0, numbers(0, 10)...)
		a := w.source(t)
		old := receive(t, a, 10)
		late := make(chan error, 1)
		go func() { // the handler ends long after the partition was taken away
			<-old[0].Lost
			late <- nil
		}()

		b := w.source(t)
		done := make(chan []consumer.Delivery, 1)
		go func() { done <- receive(t, b, 1) }()
		<-late
		// The range balancer gives the only partition to the lower member ID, which may be either.
		closeSource(t, a)
		ds := <-done
		ds = append(ds, receive(t, b, 10-len(ds))...)
		require.Equal(t, numbers(0, 10), bodies(ds), "everything unacknowledged comes again")
		ack(t, ds...)
		require.Eventually(t, func() bool { return committed(t, cl, w.group, w.topic, 0) == 10 }, eventually, 20*time.Millisecond)
		ack(t, old...)
		closeSource(t, b)
		require.EqualValues(t, 10, committed(t, cl, w.group, w.topic, 0))
	})
}

func TestAcksDuringTheDrainOfARebalanceCount(t *testing.T) {
	t.Parallel()
	everywhere(t, 2, func(t *testing.T, w world) {
		cl := w.client(t)
		produce(t, cl, 0, "a", "b")
		produce(t, cl, 1, "c", "d")
		s := w.source(t, func(o *kafka.SourceOptions) { o.SessionTimeout = 6 * time.Second })
		ds := receive(t, s, 4)
		other := w.source(t, func(o *kafka.SourceOptions) { o.SessionTimeout = 6 * time.Second })
		joined := make(chan struct{})
		go func() {
			defer close(joined)
			_, err := other.Receive(within(t, 3*time.Second), 1)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("acknowledged messages came again: %v", err)
			}
		}()
		for _, d := range ds {
			<-d.Lost
			ack(t, d)
		}
		nothing(t, s, 3*time.Second)
		<-joined
		require.EqualValues(t, 2, committed(t, cl, w.group, w.topic, 0))
		require.EqualValues(t, 2, committed(t, cl, w.group, w.topic, 1))
	})
}

func TestRebalanceLosesNothingAndNeverCommitsBackwards(t *testing.T) {
	t.Parallel()
	everywhere(t, 4, func(t *testing.T, w world) {
		cl := w.client(t)
		const total = 2000
		backwards := watchCommits(w)
		for p := range int32(4) {
			produce(t, cl, p, numbers(0, total/4)...)
		}
		seen := make(chan string, 100*total)
		consume := func(ctx context.Context, s *kafka.Source) {
			for {
				ds, err := s.Receive(ctx, 16)
				if err != nil {
					return
				}
				for _, d := range ds {
					seen <- d.ID
					go func() { _ = d.Ack(ctx) }()
				}
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		a := w.source(t)
		go consume(ctx, a)
		ids := map[string]bool{}
		for len(ids) < total/4 {
			ids[<-seen] = true
		}
		b := w.source(t)
		go consume(ctx, b)
		for len(ids) < total/2 { // until both are at work
			ids[<-seen] = true
		}
		closeSource(t, a)
		deadline := time.After(eventually)
		for len(ids) < total {
			select {
			case id := <-seen:
				ids[id] = true
			case <-deadline:
				require.FailNow(t, "messages are missing", "%d of %d came", len(ids), total)
			}
		}
		require.Eventually(t, func() bool {
			sum := int64(0)
			for p := range int32(4) {
				sum += committed(t, cl, w.group, w.topic, p)
			}
			return sum == total
		}, eventually, 50*time.Millisecond)
		require.Zero(t, backwards.Load())
	})
}

// watchCommits counts the commits that are lower than an earlier one, on the fake.
func watchCommits(w world) *atomic.Int64 {
	backwards := new(atomic.Int64)
	if w.fake == nil {
		return backwards
	}
	last := map[int32]int64{}
	w.fake.ControlKey(int16(kmsg.OffsetCommit), func(r kmsg.Request) (kmsg.Response, error, bool) {
		w.fake.KeepControl()
		for _, rt := range r.(*kmsg.OffsetCommitRequest).Topics {
			for _, p := range rt.Partitions {
				if p.Offset < last[p.Partition] {
					backwards.Add(1)
				}
				last[p.Partition] = max(last[p.Partition], p.Offset)
			}
		}
		return nil, nil, false
	})
	return backwards
}

func TestFailedCommitsAreRepeated(t *testing.T) {
	t.Parallel()
	c := fakeKafka(t, 1)
	cl := client(t, c.ListenAddrs())
	produce(t, cl, 0, "a", "b")
	f := c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.OffsetCommit}, Err: kerr.CoordinatorLoadInProgress, Count: 2})
	s := newSource(t, c.ListenAddrs())
	ack(t, receive(t, s, 2)...)
	require.Eventually(t, func() bool { return committed(t, cl, "g", "t", 0) == 2 }, eventually, 20*time.Millisecond)
	require.EqualValues(t, 2, f.Hits())
}

func TestLastCommitOutlivesABrokenConnection(t *testing.T) {
	c := fakeKafka(t, 1)
	cl := client(t, c.ListenAddrs())
	produce(t, cl, 0, "a", "b")
	s := newSource(t, c.ListenAddrs())
	ds := receive(t, s, 2)
	require.Eventually(t, func() bool { return committed(t, cl, "g", "t", 0) == 0 }, eventually, 20*time.Millisecond)
	var broken atomic.Int64
	c.ControlKey(int16(kmsg.OffsetCommit), func(kmsg.Request) (kmsg.Response, error, bool) {
		if broken.Add(1) <= 2 {
			c.KeepControl()
			return nil, errors.New("cut"), true // closes the connection
		}
		return nil, nil, false
	})
	ack(t, ds...)
	closeSource(t, s)
	require.EqualValues(t, 2, committed(t, cl, "g", "t", 0), "nothing commits after Close")
	require.GreaterOrEqual(t, broken.Load(), int64(2))
}

func TestMissingTopicIsNamedAndConsumedOnceItIsThere(t *testing.T) {
	t.Parallel()
	everywhere(t, 0, func(t *testing.T, w world) {
		var l log
		joins, looks := w.watch(kmsg.JoinGroup), w.watch(kmsg.Metadata)
		s := w.source(t, func(o *kafka.SourceOptions) { o.Logger = l.logger() })
		nothing(t, s, time.Second)
		require.Contains(t, l.String(), `level=WARN msg="kafka: the topic does not exist; it is consumed from when it does" group=`+w.group+` topic=`+w.topic)
		if w.fake != nil {
			require.Zero(t, joins.Hits(), "a member without a topic")
			require.Positive(t, looks.Hits())
			require.Less(t, looks.Hits(), 30, "it does not ask without a pause")
		}
		w.create(t, w.topic, 1, nil)
		produce(t, w.client(t), 0, "a")
		require.Equal(t, []string{"a"}, bodies(receive(t, s, 1)))
	})
}

// watch counts requests to the fake.
func (w world) watch(k kmsg.Key) *kfake.FaultHandle {
	if w.fake == nil {
		return nil
	}
	return w.fake.Fault(kfake.Fault{Keys: []kmsg.Key{k}, Observe: true, Count: -1})
}

func TestTopicThatExistsIsConsumedWhileAnotherIsMissing(t *testing.T) {
	t.Parallel()
	everywhere(t, 1, func(t *testing.T, w world) {
		cl := w.client(t)
		produce(t, cl, 0, "a")
		joins, looks := w.watch(kmsg.JoinGroup), w.watch(kmsg.Metadata)
		s := sourceOf(t, w.brokers, w.group, []string{w.topic, w.topic + "-later"})
		ack(t, receive(t, s, 1)...)
		if w.fake != nil {
			nothing(t, s, time.Second)
			require.Positive(t, joins.Hits())
			require.LessOrEqual(t, joins.Hits(), 2, "it does not join again and again")
			require.Positive(t, looks.Hits())
			require.Less(t, looks.Hits(), 30, "it does not ask without a pause")
		}
		w.create(t, w.topic+"-later", 1, nil)
		require.NoError(t, cl.ProduceSync(within(t, eventually), &kgo.Record{Topic: w.topic + "-later", Value: []byte("b")}).FirstErr())
		ds := receive(t, s, 1)
		require.Equal(t, []string{"b"}, bodies(ds))
		require.Equal(t, w.topic+"-later/0/0", ds[0].ID)
	})
}

func TestPartitionsAddedWhileRunningAreConsumed(t *testing.T) {
	t.Parallel()
	for _, latest := range []bool{false, true} {
		t.Run("FromLatest="+strconv.FormatBool(latest), func(t *testing.T) {
			everywhere(t, 1, func(t *testing.T, w world) {
				cl := w.client(t)
				s := w.source(t, func(o *kafka.SourceOptions) { o.FromLatest = latest })
				nothing(t, s, time.Second)
				req := kmsg.NewPtrCreatePartitionsRequest()
				rt := kmsg.NewCreatePartitionsRequestTopic()
				rt.Topic, rt.Count = w.topic, 2
				req.Topics = append(req.Topics, rt)
				res, err := req.RequestWith(t.Context(), cl)
				require.NoError(t, err)
				require.NoError(t, kerr.ErrorForCode(res.Topics[0].ErrorCode))
				require.Eventually(t, func() bool {
					err := cl.ProduceSync(t.Context(), &kgo.Record{Partition: 1, Value: []byte("new")}).FirstErr()
					cl.ForceMetadataRefresh()
					return err == nil
				}, eventually, 50*time.Millisecond)
				require.Equal(t, []string{"new"}, bodies(receive(t, s, 1)), "written before the source noticed")
			})
		})
	}
}

func TestBrokerThatIsNotThereYetIsWaitedFor(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	require.NoError(t, l.Close())
	var out log
	s := newSource(t, []string{"127.0.0.1:" + strconv.Itoa(port)}, func(o *kafka.SourceOptions) { o.Logger = out.logger() })
	nothing(t, s, time.Second)
	require.Contains(t, out.String(), "kafka: brokers cannot be asked for the topics, trying on")
	require.False(t, s.Connected())

	c := fakeKafka(t, 1, kfake.Ports(port))
	produce(t, client(t, c.ListenAddrs()), 0, "a")
	require.Equal(t, []string{"a"}, bodies(receive(t, s, 1)))
	require.Eventually(t, s.Connected, eventually, 10*time.Millisecond)
}

func TestBrokerGoneInMidRunComesBack(t *testing.T) {
	t.Parallel()
	c := fakeKafka(t, 1)
	cl := client(t, c.ListenAddrs())
	produce(t, cl, 0, numbers(0, 10)...)
	s := newSource(t, c.ListenAddrs())
	ack(t, receive(t, s, 5)...)
	require.Eventually(t, s.Connected, eventually, 10*time.Millisecond)
	var gone atomic.Bool
	gone.Store(true)
	c.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		if gone.Load() {
			return nil, errors.New("gone"), true // cuts the connection
		}
		return nil, nil, false
	})
	ctx := within(t, 3*time.Second)
	for ctx.Err() == nil { // what is fetched already may come
		ds, err := s.Receive(ctx, 5)
		if err == nil {
			ack(t, ds...)
		}
	}
	require.Eventually(t, func() bool { return !s.Connected() }, eventually, 10*time.Millisecond)
	gone.Store(false)
	produce(t, cl, 0, "after")
	for {
		ds := receive(t, s, 1)
		ack(t, ds...)
		if string(ds[0].Body) == "after" {
			break
		}
	}
	require.Eventually(t, s.Connected, eventually, 10*time.Millisecond)
	closeSource(t, s)
	require.False(t, s.Connected())
	require.EqualValues(t, 11, committed(t, cl, "g", "t", 0))
}

func TestWhatWaitingCannotMendIsReturned(t *testing.T) {
	t.Run("wrong password", func(t *testing.T) {
		c := fakeKafka(t, 1, kfake.EnableSASL(), kfake.Superuser("PLAIN", "u", "right"))
		c.ControlKey(int16(kmsg.SASLAuthenticate), func(r kmsg.Request) (kmsg.Response, error, bool) { // the fake just hangs up
			c.KeepControl()
			res := r.ResponseKind().(*kmsg.SASLAuthenticateResponse)
			res.ErrorCode = kerr.SaslAuthenticationFailed.Code
			return res, nil, true
		})
		s, err := kafka.NewSource(kafka.Cluster{Brokers: c.ListenAddrs(), SASL: plain.Mechanism{Username: "u", Password: "wrong"}},
			"g", []string{"t"}, nil)
		require.NoError(t, err)
		defer closeSource(t, s)
		_, err = s.Receive(within(t, eventually), 1)
		require.ErrorIs(t, err, kafkago.SASLAuthenticationFailed)
	})
	t.Run("no right to the group", func(t *testing.T) {
		c := fakeKafka(t, 1)
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.JoinGroup}, TopLevel: true, Err: kerr.GroupAuthorizationFailed, Count: -1})
		s := newSource(t, c.ListenAddrs())
		_, err := s.Receive(within(t, eventually), 1)
		require.ErrorIs(t, err, kafkago.GroupAuthorizationFailed)
	})
	t.Run("no right to read the topic", func(t *testing.T) {
		c := fakeKafka(t, 1)
		c.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Fetch}, Topic: "t", Err: kerr.TopicAuthorizationFailed, Count: -1})
		s := newSource(t, c.ListenAddrs())
		_, err := s.Receive(within(t, eventually), 1)
		require.ErrorIs(t, err, kafkago.TopicAuthorizationFailed)
		require.ErrorContains(t, err, "kafka: fetch t/0 of group g: ")
	})
	t.Run("session timeout outside the broker's bounds", func(t *testing.T) {
		c := fakeKafka(t, 1, kfake.GroupMinSessionTimeout(6*time.Second))
		s := newSource(t, c.ListenAddrs())
		_, err := s.Receive(within(t, eventually), 1)
		require.ErrorIs(t, err, kafkago.InvalidSessionTimeout)
		require.ErrorContains(t, err, "kafka: join kafka/g: SourceOptions.SessionTimeout 2s is outside the broker's group.min.session.timeout.ms to group.max.session.timeout.ms; change either: ")
	})
}

func TestReceiveOfNothingIsRefused(t *testing.T) {
	s := newSource(t, []string{"127.0.0.1:1"})
	_, err := s.Receive(t.Context(), 0)
	require.EqualError(t, err, "kafka: Receive of 0 deliveries; ask for at least one")
}
