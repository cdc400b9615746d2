package rabbitmq

import (
	"net"
	"sync"
	"time"
)

// most is how much may wait to be written before who writes has to wait, too.
const most = 256 << 10

// writer writes behind the client's back: the client flushes every acknowledgement and every
// message, and a system call each is what most of their time goes to, here and in the server.
// While one write is under way the next one gathers; nothing waits for more to come.
type writer struct {
	to net.Conn

	mu      sync.Mutex
	changed sync.Cond
	buf     []byte
	writing bool
	err     error // of the last write, or net.ErrClosed; nothing is written any more
}

// newWriter starts a goroutine, which ends with close.
func newWriter(to net.Conn) *writer {
	w := &writer{to: to}
	w.changed.L = &w.mu
	go w.run()
	return w
}

// Write takes b in. An error is that of an earlier write.
func (w *writer) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for len(w.buf) > most && w.err == nil {
		w.changed.Wait()
	}
	if w.err != nil {
		return 0, w.err
	}
	if len(w.buf) == 0 {
		w.changed.Broadcast()
	}
	w.buf = append(w.buf, b...)
	return len(b), nil
}

func (w *writer) run() {
	var spare []byte
	for {
		w.mu.Lock()
		for len(w.buf) == 0 && w.err == nil {
			w.changed.Wait()
		}
		if w.err != nil {
			w.mu.Unlock()
			return
		}
		out := w.buf
		w.buf, w.writing = spare[:0], true
		w.changed.Broadcast()
		w.mu.Unlock()
		err := w.to.SetWriteDeadline(time.Now().Add(writeTimeout))
		if err == nil {
			_, err = w.to.Write(out)
		}
		if err != nil {
			w.close(err)
			w.to.Close() // who reads learns of it at once
			return
		}
		if spare = out; cap(spare) > 4*most {
			spare = nil
		}
		w.mu.Lock()
		w.writing = false
		w.changed.Broadcast()
		w.mu.Unlock()
	}
}

// written returns when nothing waits to be written, or ever will.
func (w *writer) written() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for (len(w.buf) > 0 || w.writing) && w.err == nil {
		w.changed.Wait()
	}
}

// close ends run. What was not written is lost with the connection.
func (w *writer) close(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err == nil {
		w.err = err
	}
	w.changed.Broadcast()
}
