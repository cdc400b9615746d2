package kafka_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/idemq/idemq/brokers/kafka"
	"github.com/idemq/idemq/outbox"
)

func TestConfirmedPartsOfASplitBatchAreAnsweredAsConfirmed(t *testing.T) {
	c := fakeKafka(t, 1)
	const count = 57 // where a batch has the number of its records
	c.ControlKey(int16(kmsg.Produce), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := r.(*kmsg.ProduceRequest)
		batch := req.Topics[0].Partitions[0].Records
		refused := kmsg.NewProduceResponseTopicPartition()
		switch {
		case binary.BigEndian.Uint32(batch[count:]) > 2:
			refused.ErrorCode = kerr.MessageTooLarge.Code
		case bytes.Contains(batch, []byte("body-2")):
			refused.ErrorCode = kerr.TopicAuthorizationFailed.Code
		default:
			return nil, nil, false
		}
		topic := kmsg.NewProduceResponseTopic()
		topic.Topic, topic.Partitions = "t", append(topic.Partitions, refused)
		res := req.ResponseKind().(*kmsg.ProduceResponse)
		res.Topics = append(res.Topics, topic)
		return res, nil, true
	})
	p := newPublisher(t, c.ListenAddrs(), &kafka.PublisherOptions{})
	var ms []outbox.Message
	for i := range 8 {
		ms = append(ms, outbox.Message{ID: fmt.Sprint(i), Topic: "t", Key: "k", Body: fmt.Appendf(nil, "body-%d", i)})
	}
	for i, err := range publish(t, p, ms...) {
		if i < 2 {
			require.NoError(t, err, i)
		} else {
			require.ErrorContains(t, err, "Authorization", i)
		}
	}
}
