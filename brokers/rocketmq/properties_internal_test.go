package rocketmq

import (
	"maps"
	"strings"
	"testing"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/outbox"
)

// arrived is what the client library makes of properties, which is what a broker does, too: pairs
// without a value are dropped.
func arrived(text string) map[string]string {
	m := new(primitive.Message)
	m.UnmarshalProperties([]byte(text))
	props := m.GetProperties()
	maps.DeleteFunc(props, func(_, v string) bool { return v == "" })
	return props
}

func TestHeadersArriveWhateverTheyHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.OneOf(rapid.StringN(1, 20, -1), rapid.SampledFrom([]string{
			"TAGS", "KEYS", "DELAY", "UNIQ_KEY", "SHARDING_KEY", "RETRY_TOPIC", "idemq-headers", "a\x01b", "\x02", "\xff",
		}))
		value := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "\x01", "a\x02b", "\x00\xff\n", "世界"}))
		headers := rapid.MapOfN(name, value, 0, 8).Draw(t, "headers")
		key := value.Draw(t, "key")
		text, err := encodeProperties(map[string]string{"UNIQ_KEY": "u"}, headers, key)
		require.NoError(t, err)
		again, err := encodeProperties(map[string]string{"UNIQ_KEY": "u"}, headers, key)
		require.NoError(t, err)
		require.Equal(t, text, again, "equal headers are equal bytes")
		props := arrived(text)
		require.Equal(t, "u", props["UNIQ_KEY"], "no header steers a message")
		require.Empty(t, props["DELAY"])
		gotHeaders, gotKey := decodeProperties(props)
		require.Equal(t, headers, gotHeaders)
		require.Equal(t, key, gotKey)
	})
}

// Agents glue text with separators onto the last property, and kept delays have sent dead letters
// to sleep for hours.
func TestCopyDropsWhatSteersAndKeepsWhatNames(t *testing.T) {
	raw := &primitive.MessageExt{Message: primitive.Message{Topic: "orders", Body: []byte("body"), Flag: 7}, OffsetMsgId: "offset-id"}
	raw.WithProperties(map[string]string{
		"DELAY": "18", "TIMER_DELIVER_MS": "99999999999999", "REAL_TOPIC": "SCHEDULE_TOPIC_XXXX", "REAL_QID": "3", "TRAN_MSG": "true",
		"PGROUP": "producers", "RETRY_TOPIC": "older", "RECONSUME_TIME": "9", "MAX_OFFSET": "12", "CLUSTER": "c", "MSG_REGION": "r",
		"UNIQ_KEY": "name", "SHARDING_KEY": "k", "TAGS": "t", "KEYS": "a b", "own": "kept", "Pinpoint-Flags": "0",
	})
	headers, key := decodeProperties(raw.GetProperties())
	out, err := copyOf(raw, "g-retry", headers, key, map[string]string{"DELAY": "2", "RETRY_TOPIC": "orders"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"UNIQ_KEY": "name", "SHARDING_KEY": "k", "TAGS": "t", "KEYS": "a b", "own": "kept", "Pinpoint-Flags": "0",
		"DELAY": "2", "RETRY_TOPIC": "orders",
	}, arrived(out.properties))
	require.Equal(t, "g-retry", out.topic)
	require.Equal(t, "k", out.key)
	require.EqualValues(t, 7, out.flag)
	require.Equal(t, []byte("body"), out.body)

	dead, err := deadCopy(raw, "g-dead", map[string]string{consumer.CauseHeader: "why", consumer.RedriveHeader: "1"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{
		"UNIQ_KEY": "name", "SHARDING_KEY": "k", "TAGS": "t", "KEYS": "a b", "own": "kept", "Pinpoint-Flags": "0",
		consumer.CauseHeader: "why", consumer.RedriveHeader: "1",
	}, arrived(dead.properties))
}

func TestCopyWithoutAUniqueKeyKeepsTheFirstID(t *testing.T) {
	raw := &primitive.MessageExt{Message: primitive.Message{Topic: "orders", Body: []byte("b")}, OffsetMsgId: "first"}
	out, err := copyOf(raw, "g-retry", nil, "", nil)
	require.NoError(t, err)
	second := &primitive.MessageExt{OffsetMsgId: "second"}
	second.WithProperties(arrived(out.properties))
	require.Equal(t, "first", brokerID(second))
	out, err = copyOf(second, "g-retry", nil, "", nil)
	require.NoError(t, err)
	require.Equal(t, "first", arrived(out.properties)["UNIQ_KEY"])
}

func TestHeadersBeyondTheRoomAreRefused(t *testing.T) {
	_, err := somewhere.newMessage(&outbox.Message{ID: "1", Topic: "t", Headers: map[string]string{"h": strings.Repeat("x", 33_000)}, Body: []byte("b")})
	require.ErrorContains(t, err, "key and headers take 33")
	require.ErrorContains(t, err, "of which RocketMQ has room for 32000")
	require.Equal(t, terminal, classify(err))
}

func TestDeadLetterWithoutRoomForItsCauseLosesTheCauseOnly(t *testing.T) {
	raw := &primitive.MessageExt{Message: primitive.Message{Topic: "orders", Body: []byte("b")}}
	raw.WithProperties(map[string]string{"UNIQ_KEY": "u", "h": strings.Repeat("x", 31_500)})
	out, err := deadCopy(raw, "g-dead", map[string]string{consumer.CauseHeader: strings.Repeat("y", 1024), consumer.RedriveHeader: "1"})
	require.NoError(t, err)
	props := arrived(out.properties)
	require.Empty(t, props[consumer.CauseHeader])
	require.Equal(t, "1", props[consumer.RedriveHeader])
	require.Len(t, props["h"], 31_500)
}

var somewhere = Cluster{NameServers: []string{"127.0.0.1:9876"}}
