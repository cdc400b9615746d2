package rocketmq_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// middle stands between a client and a server of the remoting protocol.
type middle struct {
	addr, to string
	away     atomic.Bool                              // whoever connects is hung up on
	dials    atomic.Int64                             // connections that clients have asked for
	asked    atomic.Int64                             // requests of the code that edit is for
	code     int                                      // of the requests whose answers edit changes
	edit     atomic.Pointer[func(body []byte) []byte] // nil: the answer stays as it is

	mu    sync.Mutex
	conns []net.Conn
	ended bool
}

func newMiddle(t testing.TB, to string, code int) *middle {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	m := &middle{addr: l.Addr().String(), to: to, code: code}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			m.dials.Add(1)
			if s, ok := m.open(c); ok {
				running.Go(func() { m.serve(c, s) })
			}
		}
	})
	t.Cleanup(func() {
		l.Close()
		m.mu.Lock()
		m.ended = true
		for _, c := range m.conns {
			c.Close()
		}
		m.mu.Unlock()
		running.Wait()
	})
	return m
}

func (m *middle) open(c net.Conn) (server net.Conn, ok bool) {
	server, err := net.Dial("tcp", m.to)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err != nil || m.ended || m.away.Load() {
		c.Close()
		if err == nil {
			server.Close()
		}
		return nil, false
	}
	m.conns = append(m.conns, c, server)
	return server, true
}

func (m *middle) serve(c, s net.Conn) {
	var ours sync.Map // opaque numbers of the requests of m.code
	var up sync.WaitGroup
	up.Go(func() {
		defer s.Close()
		for {
			head, body, err := readRaw(c)
			if err != nil {
				return
			}
			if h := headOf(head); h.Code == m.code {
				m.asked.Add(1)
				ours.Store(h.Opaque, true)
			}
			if _, err := s.Write(rawFrame(head, body)); err != nil {
				return
			}
		}
	})
	for {
		head, body, err := readRaw(s)
		if err != nil {
			break
		}
		if h := headOf(head); h.Flag&1 != 0 {
			if _, edited := ours.LoadAndDelete(h.Opaque); edited {
				if edit := m.edit.Load(); edit != nil {
					body = (*edit)(body)
				}
			}
		}
		if _, err := c.Write(rawFrame(head, body)); err != nil {
			break
		}
	}
	c.Close()
	s.Close()
	up.Wait()
}

func (m *middle) change(edit func(body []byte) []byte) { m.edit.Store(&edit) }

// hangUp breaks every connection.
func (m *middle) hangUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.conns {
		c.Close()
	}
	m.conns = nil
}

// behind is w with a middle before its broker, which edits answers to requests of the code.
func (w world) behind(t testing.TB, code int) (world, *middle) {
	t.Helper()
	const askRoute = 105
	broker := newMiddle(t, w.broker, code)
	names := newMiddle(t, w.cluster.NameServers[0], askRoute)
	names.change(func(body []byte) []byte { return bytes.ReplaceAll(body, []byte(w.broker), []byte(broker.addr)) })
	w.cluster.NameServers = []string{names.addr}
	return w, broker
}

type rawHead struct {
	Code   int   `json:"code"`
	Opaque int32 `json:"opaque"`
	Flag   int   `json:"flag"`
}

func headOf(head []byte) (h rawHead) {
	_ = json.Unmarshal(head, &h)
	return h
}

func readRaw(from io.Reader) (head, body []byte, err error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, nil, err
	}
	frame := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(from, frame); err != nil {
		return nil, nil, err
	}
	n := binary.BigEndian.Uint32(frame) & 0xffffff
	return frame[4 : 4+n], frame[4+n:], nil
}

func rawFrame(head, body []byte) []byte {
	frame := binary.BigEndian.AppendUint32(nil, uint32(4+len(head)+len(body)))
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(head)))
	return append(append(frame, head...), body...)
}
