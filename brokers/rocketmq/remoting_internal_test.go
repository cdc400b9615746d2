package rocketmq

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"
)

// pipe is a connection and its other side.
func pipe(t *testing.T, cred primitive.Credentials, notify func(*conn, *command)) (*conn, net.Conn) {
	t.Helper()
	ours, theirs := net.Pipe()
	c := newConn(ours, "broker:1", cred, notify)
	t.Cleanup(func() {
		c.close()
		theirs.Close()
	})
	return c, theirs
}

func readFrame(t *testing.T, from io.Reader) *command {
	t.Helper()
	c, err := nextFrame(from)
	require.NoError(t, err)
	return c
}

func nextFrame(from io.Reader) (*command, error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(from, frame); err != nil {
		return nil, err
	}
	return decode(frame)
}

func reply(t *testing.T, to io.Writer, c command) {
	t.Helper()
	c.Flag |= flagReply
	frame, err := c.encode(primitive.Credentials{})
	require.NoError(t, err)
	_, err = to.Write(frame)
	require.NoError(t, err)
}

func TestRepliesFindTheirCallsInAnyOrder(t *testing.T) {
	c, other := pipe(t, primitive.Credentials{}, nil)
	var calls sync.WaitGroup
	for _, body := range []string{"a", "b", "c"} {
		calls.Go(func() {
			answer, err := c.call(t.Context(), command{Code: 1, body: []byte(body)})
			require.NoError(t, err)
			require.Equal(t, body, string(answer.body))
		})
	}
	var asked []*command
	for range 3 {
		asked = append(asked, readFrame(t, other))
	}
	for i := range asked {
		last := asked[len(asked)-1-i]
		reply(t, other, command{Opaque: last.Opaque, body: last.body})
	}
	calls.Wait()
}

func TestBrokenConnectionFailsAllCallsAtOnce(t *testing.T) {
	c, other := pipe(t, primitive.Credentials{}, nil)
	errs := make(chan error, 3)
	for range 3 {
		go func() {
			_, err := c.call(context.Background(), command{})
			errs <- err
		}()
	}
	for range 3 {
		readFrame(t, other)
	}
	other.Close()
	for range 3 {
		require.ErrorContains(t, <-errs, "connection to broker:1: ")
	}
	_, err := c.call(t.Context(), command{})
	require.ErrorContains(t, err, "connection to broker:1: ")
	require.False(t, c.alive())
}

func TestCallThatGivesUpLeavesTheConnection(t *testing.T) {
	c, other := pipe(t, primitive.Credentials{}, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := c.call(ctx, command{})
		done <- err
	}()
	late := readFrame(t, other)
	why := errors.New("no patience")
	cancel(why)
	require.ErrorIs(t, <-done, why)
	reply(t, other, command{Opaque: late.Opaque}) // nobody waits for it any more
	go func() { reply(t, other, command{Opaque: readFrame(t, other).Opaque, body: []byte("yes")}) }()
	answer, err := c.call(t.Context(), command{})
	require.NoError(t, err)
	require.Equal(t, "yes", string(answer.body))
}

func TestWhatTheBrokerSaysUnaskedIsTakenAside(t *testing.T) {
	told := make(chan *command, 1)
	_, other := pipe(t, primitive.Credentials{}, func(_ *conn, c *command) { told <- c })
	frame, err := (&command{Code: tellMembersMoved, Flag: flagOneWay, Fields: map[string]string{"consumerGroup": "g"}}).encode(primitive.Credentials{})
	require.NoError(t, err)
	_, err = other.Write(frame)
	require.NoError(t, err)
	require.Equal(t, tellMembersMoved, (<-told).Code)
}

func TestAnotherProtocolBreaksTheConnection(t *testing.T) {
	for name, bytes := range map[string]string{
		"http":               "HTTP/1.1 400 Bad Request\r\n\r\n",
		"a header too long":  "\x00\x00\x00\x08\x00\x00\xff\xff{}  ",
		"a binary header":    "\x00\x00\x00\x08\x01\x00\x00\x02{}  ",
		"no header":          "\x00\x00\x00\x02ab",
		"a header of rubble": "\x00\x00\x00\x08\x00\x00\x00\x04{{{{",
	} {
		t.Run(name, func(t *testing.T) {
			c, other := pipe(t, primitive.Credentials{}, nil)
			go other.Write([]byte(bytes))
			select {
			case <-c.broken:
			case <-time.After(5 * time.Second):
				require.Fail(t, "still open")
			}
			require.ErrorContains(t, c.lost(), "connection to broker:1: ")
		})
	}
}

// The signature is HMAC-SHA1 over the values in the order of their names, and the body; computed
// here with openssl for: printf 'keyg3body' | openssl dgst -sha1 -hmac secret -binary | base64
func TestCallsAreSigned(t *testing.T) {
	c, other := pipe(t, primitive.Credentials{AccessKey: "key", SecretKey: "secret"}, nil)
	go c.call(t.Context(), command{Fields: map[string]string{"topic": "3", "group": "g"}, body: []byte("body")})
	got := readFrame(t, other)
	require.Equal(t, "key", got.Fields["AccessKey"])
	require.Equal(t, "ZFrVVpNsy3vDrUBOuZt8MXXmFHU=", got.Fields["Signature"])
}

func TestRoutesOfOldNameServersAreRead(t *testing.T) {
	body := []byte(`{"brokerDatas":[{"brokerAddrs":{0:"1.2.3.4:10911",1:"1.2.3.5:10911"},"brokerName":"a"}],"queueDatas":[]}`)
	require.JSONEq(t, `{"brokerDatas":[{"brokerAddrs":{"0":"1.2.3.4:10911","1":"1.2.3.5:10911"},"brokerName":"a"}],"queueDatas":[]}`,
		string(bareKey.ReplaceAll(body, []byte(`$1"$2":`))))
}

func FuzzDecode(f *testing.F) {
	frame, err := (&command{Code: 1, Fields: map[string]string{"a": "b"}, body: []byte("x")}).encode(primitive.Credentials{})
	require.NoError(f, err)
	f.Add(frame[4:])
	f.Add([]byte{0, 0, 0, 2, '{', '}'})
	f.Fuzz(func(t *testing.T, frame []byte) {
		c, err := decode(frame)
		if err == nil {
			require.True(t, bytes.HasSuffix(frame, c.body))
		}
	})
}

func TestMemberLeavesOnlyOnceItsHeartbeatIsAnswered(t *testing.T) {
	cn, broker := pipe(t, primitive.Credentials{}, nil)
	s, err := NewSource(Cluster{NameServers: []string{"127.0.0.1:1"}}, "g", []string{"t"}, nil)
	require.NoError(t, err)
	s.asked[cn.addr] = true
	ctx, leave := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.greet(ctx, cn) }()
	beat := readFrame(t, broker)
	leave()
	select {
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	case <-time.After(50 * time.Millisecond): // an answer that comes at once proves nothing
	}
	reply(t, broker, command{Opaque: beat.Opaque})
	require.NoError(t, <-done)
}
