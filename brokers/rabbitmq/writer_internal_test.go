package rabbitmq

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestWriterKeepsTheOrderAndGathersWhatComesMeanwhile(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	w := newWriter(here)
	defer w.close(net.ErrClosed)
	const n = 1000
	for i := range uint32(n) { // nobody reads yet, so no write ends
		_, err := w.Write(binary.BigEndian.AppendUint32(nil, i))
		require.NoError(t, err)
	}
	all := make([]byte, 4*n)
	_, err := io.ReadFull(there, all)
	require.NoError(t, err)
	for i := range uint32(n) {
		require.Equal(t, i, binary.BigEndian.Uint32(all[4*i:]))
	}
}

func TestWriterWaitsWhereTheServerDoesNotReadAndTellsOfItsEnd(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	w := newWriter(here)
	full := make(chan error, 1)
	go func() {
		for {
			if _, err := w.Write(bytes.Repeat([]byte("x"), most/2)); err != nil {
				full <- err
				return
			}
		}
	}()
	select {
	case err := <-full:
		require.NoError(t, err)
	case <-time.After(50 * time.Millisecond):
	}
	w.mu.Lock()
	require.LessOrEqual(t, len(w.buf), 2*most)
	w.mu.Unlock()
	w.close(net.ErrClosed)
	require.ErrorIs(t, <-full, net.ErrClosed)
	here.Close()
}

func TestWriterClosesAConnectionThatBreaks(t *testing.T) {
	here, there := net.Pipe()
	w := newWriter(here)
	there.Close()
	_, err := w.Write([]byte("x"))
	require.NoError(t, err, "an error is that of an earlier write")
	_, err = here.Read(make([]byte, 1))
	require.Error(t, err)
	require.Eventually(t, func() bool { _, err := w.Write([]byte("x")); return err != nil }, time.Second, time.Millisecond)
}
