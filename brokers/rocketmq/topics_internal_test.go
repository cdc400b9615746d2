package rocketmq

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"
)

// A member that waits for the topic of its retries sends no heartbeat meanwhile.
func TestTopicThatDoesNotAppearIsNotWaitedForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClient(Cluster{NameServers: []string{"names:1"}}, nil)
		ours, theirs := net.Pipe()
		c.conns["names:1"] = newConn(ours, "names:1", primitive.Credentials{}, nil)
		t.Cleanup(func() {
			c.close()
			theirs.Close()
		})
		c.routes["like"] = route{}
		asked := 0
		go func() { // it knows no topic
			for {
				q, err := nextFrame(theirs)
				if err != nil {
					return
				}
				asked++
				frame, err := (&command{Code: codeNoTopic, Opaque: q.Opaque, Flag: flagReply}).encode(primitive.Credentials{})
				if err == nil {
					_, err = theirs.Write(frame)
				}
				if err != nil {
					return
				}
			}
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.ErrorIs(t, c.ensure(ctx, "retries", "like"), errNoTopic)
		require.NoError(t, ctx.Err())
		require.Greater(t, asked, 3)
	})
}
