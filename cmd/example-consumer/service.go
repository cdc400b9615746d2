package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
)

// appName keeps this application's records apart from those of others on the same Redis.
const appName = "example-consumer"

// serve consumes until ctx ends, then drains.
func serve(ctx context.Context, c *config, stdout, stderr io.Writer) error {
	log := slog.New(slog.NewTextHandler(stderr, nil))
	b, err := c.servers.broker()
	if err != nil {
		return err
	}
	defer b.close()
	store, err := c.servers.openNamed(ctx, "", log)
	if err != nil {
		return err
	}
	defer store.close()
	m := newMetrics()
	guard, err := dedup.New(appName, store.Store, &dedup.Options{Logger: log, Observe: m.observe})
	if err != nil {
		return err
	}
	source, err := b.open(c.topic, c.group, log)
	if err != nil {
		return err
	}
	h := &printer{w: stdout, work: c.work}
	cons, err := consumer.New(source, guard, h.handle, &consumer.Options{
		Policy: consumer.Policy{Concurrency: c.concurrency}, DrainTimeout: c.drain,
	})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", c.listen)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	log.Info("pages are up", "metrics", "http://"+l.Addr().String()+"/metrics")
	return runService(ctx, cons, l, pages(cons, guard, m))
}

// runService runs the consumer with its pages beside it, which stay up while it drains.
func runService(ctx context.Context, cons *consumer.Consumer, l net.Listener, h http.Handler) error {
	server := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var serving sync.WaitGroup
	var pagesErr error
	serving.Go(func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			pagesErr = fmt.Errorf("pages: %w", err)
			cancel() // without its pages nobody would see how it is
		}
	})
	err := cons.Run(ctx)
	_ = server.Close() // after Run there is nothing left to tell
	serving.Wait()
	return errors.Join(err, pagesErr)
}

// printer is the sample handler: its effect is a line.
type printer struct {
	work time.Duration

	mu sync.Mutex
	w  io.Writer
}

// handled is that line.
type handled struct {
	Order   string `json:"order"`
	Attempt int    `json:"attempt"`
	Epoch   uint64 `json:"epoch"`
	Body    string `json:"body"`
}

func (p *printer) handle(ctx context.Context, m *consumer.Message) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(p.work):
	}
	line, err := json.Marshal(handled{Order: m.ID, Attempt: m.Attempt, Epoch: m.Epoch, Body: string(m.Body)})
	if err != nil {
		return consumer.Permanent(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	_, err = p.w.Write(append(line, '\n'))
	return err
}

// pages are for those who watch the service.
func pages(cons *consumer.Consumer, guard *dedup.Guard, m *metrics) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		m.write(w, cons.Stats())
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		answerHealth(w, healthy(cons.Stats()))
	})
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, req *http.Request) {
		ctx, cancel := context.WithTimeout(req.Context(), 2*time.Second)
		defer cancel()
		answerHealth(w, ready(cons.Stats(), guard.Ping(ctx)))
	})
	return mux
}

// healthy says what only a new process would mend.
func healthy(s consumer.Stats) (wrong []string) {
	if s.Zombies > 0 {
		wrong = append(wrong, fmt.Sprintf("%d handlers do not end although their time is over", s.Zombies))
	}
	return wrong
}

// ready says why no messages are handled.
func ready(s consumer.Stats, store error) []string {
	wrong := healthy(s)
	if store != nil {
		wrong = append(wrong, "the store cannot be trusted: "+store.Error())
	}
	if !s.Receiving {
		wrong = append(wrong, "not receiving: starting, draining or disconnected")
	}
	return wrong
}

func answerHealth(w http.ResponseWriter, wrong []string) {
	if len(wrong) > 0 {
		http.Error(w, strings.Join(wrong, "\n"), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}
