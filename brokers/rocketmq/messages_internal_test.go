package rocketmq

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"testing"

	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/stretchr/testify/require"
)

// stored is a message as a broker keeps it.
func stored(sysFlag int, body []byte, topic, properties string, offset int64) []byte {
	host := func(v6 bool, last byte) []byte {
		ip := []byte{10, 1, 2, last}
		if v6 {
			ip = append(bytes.Repeat([]byte{0x20}, 15), last)
		}
		return binary.BigEndian.AppendUint32(ip, 10911)
	}
	var b []byte
	i32 := func(n int) { b = binary.BigEndian.AppendUint32(b, uint32(n)) }
	i64 := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	i32(0)
	i32(-626843481)
	i32(0x1234567)
	i32(3)
	i32(7)
	i64(offset)
	i64(offset * 100)
	i32(sysFlag)
	i64(1700000000123)
	b = append(b, host(sysFlag&flagBornV6 != 0, 9)...)
	i64(1700000000456)
	b = append(b, host(sysFlag&flagStoreV6 != 0, 1)...)
	i32(2)
	i64(55)
	i32(len(body))
	b = append(b, body...)
	b = append(append(b, byte(len(topic))), topic...)
	b = binary.BigEndian.AppendUint16(b, uint16(len(properties)))
	b = append(b, properties...)
	binary.BigEndian.PutUint32(b, uint32(len(b)))
	return b
}

func deflated(t testing.TB, body string) []byte {
	var z bytes.Buffer
	w := zlib.NewWriter(&z)
	_, err := w.Write([]byte(body))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return z.Bytes()
}

func answers(t testing.TB) [][]byte {
	return [][]byte{
		nil,
		bytes.Join([][]byte{
			stored(0, []byte("one"), "orders", "UNIQ_KEY\x01AB12\x02message-id\x01m-1\x02TAGS\x01red\x02", 1),
			stored(0, []byte("two"), "orders", "a\x01b\x02", 2),
			stored(0, nil, "others", "", 3),
		}, nil),
		stored(flagCompressed, deflated(t, "a body"), "t", "k\x01v\x02no pair\x02k2\x01v\x01w\x02last\x01x", 4),
		stored(flagCompressed, []byte("not zlib"), "t", "\x02\x02=\x01\x02\x01v\x02", 5),
		bytes.Join([][]byte{stored(flagBornV6|flagStoreV6, []byte("six"), "t", "", 6), stored(flagStoreV6, []byte("v"), "t", "", 7)}, nil),
	}
}

// sameAsTheClients compares with what the client library reads.
func sameAsTheClients(t testing.TB, answer []byte, ours []fetched) {
	theirs := primitive.DecodeMessage(answer)
	require.Len(t, ours, len(theirs))
	for i, m := range ours {
		require.Equal(t, theirs[i].GetProperties(), m.props)
		require.Equal(t, len(theirs[i].Body), len(m.Body))
		require.True(t, bytes.Equal(theirs[i].Body, m.Body))
		m.Body, theirs[i].Body = nil, nil
		require.Equal(t, theirs[i], m.MessageExt)
	}
}

func TestMessagesAreReadAsTheClientLibraryReadsThem(t *testing.T) {
	for _, a := range answers(t) {
		ours, err := decodeMessages(a)
		require.NoError(t, err)
		sameAsTheClients(t, a, ours)
	}
}

func TestAnswerThatEndsWithinAMessageIsAnError(t *testing.T) {
	whole := stored(0, []byte("body"), "orders", "a\x01b\x02", 1)
	for n := 1; n < len(whole); n++ {
		_, err := decodeMessages(whole[:n])
		require.ErrorIs(t, err, errShort, "%d bytes", n)
	}
}

func FuzzDecodeMessages(f *testing.F) {
	for _, a := range answers(f) {
		f.Add(a)
	}
	f.Fuzz(func(t *testing.T, answer []byte) {
		if ours, err := decodeMessages(answer); err == nil {
			sameAsTheClients(t, answer, ours)
		}
	})
}
