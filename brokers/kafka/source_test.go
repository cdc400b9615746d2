package kafka_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// committedOf asks the coordinator, whatever a source believes.
func committedOf(cl *kgo.Client, group, topic string, p int32) (int64, error) {
	req := kmsg.NewPtrOffsetFetchRequest()
	req.Group = group
	rt := kmsg.NewOffsetFetchRequestTopic()
	rt.Topic, rt.Partitions = topic, []int32{p}
	req.Topics = append(req.Topics, rt)
	rg := kmsg.NewOffsetFetchRequestGroup()
	rg.Group = group
	gt := kmsg.NewOffsetFetchRequestGroupTopic()
	gt.Topic, gt.Partitions = topic, []int32{p}
	rg.Topics = append(rg.Topics, gt)
	req.Groups = append(req.Groups, rg)
	res, err := req.RequestWith(cl.Context(), cl)
	if err != nil {
		return 0, err
	}
	for _, t := range res.Topics {
		for _, p := range t.Partitions {
			return p.Offset, nil
		}
	}
	for _, g := range res.Groups {
		for _, t := range g.Topics {
			for _, p := range t.Partitions {
				return p.Offset, nil
			}
		}
	}
	return -1, nil
}

func TestMessagesOfAPartitionComeInOrderAndAreCommitted(t *testing.T) {
	t.Parallel()
	everywhere(t, 2, func(t *testing.T, w world) {
		cl := w.client(t)
		produce(t, cl, 1, numbers(0, 100)...)
		s := w.source(t)

		ds := receive(t, s, 100)
		require.Equal(t, numbers(0, 100), bodies(ds))
		d := ds[7]
		require.Equal(t, w.topic+"/1/7", d.ID)
		require.True(t, d.Made)
		require.Equal(t, w.topic+"/1", d.Lane)
		require.Equal(t, "kafka/"+w.group, d.Scope)
		require.Equal(t, w.topic, d.Topic)
		require.WithinDuration(t, time.Now(), d.Time, time.Minute)

		ack(t, ds[:40]...)
		ack(t, ds[41:]...)
		require.Eventually(t, func() bool { return committed(t, cl, w.group, w.topic, 1) == 40 }, eventually, 20*time.Millisecond)
		ack(t, ds[40])
		closeSource(t, s)
		require.EqualValues(t, 100, committed(t, cl, w.group, w.topic, 1))
	})
}
