package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"sync"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/outbox"
)

const (
	childrenAtOnce = 2
	trialTimeout   = 4 * time.Minute // RocketMQ's broker may hold the queues of a child for two after it was killed
	stopTimeout    = 15 * time.Second

	silenceIsTheEnd = 10 * time.Second // of the usual loop, once every copy is acknowledged
)

// trial is the run of one subject.
type trial struct {
	children
	relaying
	plan     *schedule
	servers  servers
	broker   broker
	topic    string // also the group: both are new for each trial
	director *director
	report   string  // the director's address
	effects  effects // of the subject whose effects are rows
}

func newTrial(subject, topic string, s *schedule, at servers, b broker, log *progress, stderr io.Writer) *trial {
	t := &trial{
		children: children{subject: subject, log: log, stderr: stderr, running: make(map[int]*exec.Cmd)},
		plan:     s, servers: at, broker: b, topic: topic, effects: at.effectsOf(topic),
	}
	t.director = newDirector(s, t.kill)
	t.director.ledger.inRows = subject == txSubject
	return t
}

// run publishes the schedule and lets children consume it, whoever is killed, until every copy is
// acknowledged and the broker has no more.
func (t *trial) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, trialTimeout, fmt.Errorf("not at the end after %v", trialTimeout))
	defer cancel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	t.report = "http://" + l.Addr().String()
	mux := http.NewServeMux()
	mux.Handle("/", t.director)
	if err := t.openDesk(ctx, mux); err != nil {
		l.Close()
		return err
	}
	defer t.closeDesk()
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	defer server.Close()
	defer t.director.end()

	if err := t.broker.create(ctx, t.topic, t.topic); err != nil {
		return err
	}
	if err := t.createEffects(ctx); err != nil {
		return err
	}
	if err := t.consume(ctx); err != nil {
		return fmt.Errorf("%s: %w", t.subject, err)
	}
	if err := t.countEffects(ctx); err != nil {
		return err
	}
	if err := t.countPassage(ctx); err != nil {
		return err
	}
	return t.readDeadLetters(ctx)
}

// withRows calls f with the database, where effects are rows.
func (t *trial) withRows(f func(db *sql.DB) error) error {
	if t.subject != txSubject {
		return nil
	}
	db, err := t.servers.openDB()
	if err != nil {
		return err
	}
	return errors.Join(f(db), db.Close())
}

func (t *trial) createEffects(ctx context.Context) error {
	return t.withRows(func(db *sql.DB) error { return t.effects.create(ctx, db) })
}

func (t *trial) dropEffects(ctx context.Context) error {
	return t.withRows(func(db *sql.DB) error { return t.effects.drop(ctx, db) })
}

// countEffects takes the rows into the ledger.
func (t *trial) countEffects(ctx context.Context) error {
	return t.withRows(func(db *sql.DB) error {
		rows, err := t.effects.count(ctx, db)
		for order, n := range rows {
			t.director.ledger.row(order, n)
		}
		return err
	})
}

// publish sends the schedule, or leaves that to relays.
func (t *trial) publish(ctx context.Context) error {
	if t.desk != nil {
		return spread(ctx, t.plan.requests, t.takeOrders)
	}
	return spread(ctx, t.plan.messages(t.topic), func(ctx context.Context, ms []outbox.Message) error { return publish(ctx, t.broker, ms) })
}

// spread hands all on over a few seconds, so that kills, too, are spread.
func spread[T any](ctx context.Context, all []T, handOn func(context.Context, []T) error) error {
	const parts, pause = 16, 500 * time.Millisecond
	for i := range parts {
		if err := handOn(ctx, all[i*len(all)/parts:(i+1)*len(all)/parts]); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
	return nil
}

// consume keeps the children alive until the end.
func (t *trial) consume(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	keep := func(a assignment, wasKilled func(child int) bool) {
		all.Go(func() {
			if err := t.supervise(ctx, a, wasKilled); err != nil {
				cancel(err)
			}
		})
	}
	for range childrenAtOnce {
		keep(assignment{Subject: t.subject, Report: t.report, Servers: t.servers, Topic: t.topic, Group: t.topic}, t.director.killed)
	}
	if t.desk != nil {
		keep(assignment{Subject: relayRole, Report: t.report + relayPath, Servers: t.servers, Outbox: t.dsn}, t.relays.killed)
	}
	err := t.publish(ctx)
	if err == nil {
		err = t.awaitEnd(ctx)
	}
	t.stop()
	if err != nil {
		cancel(err)
	}
	killer := time.AfterFunc(stopTimeout, func() { cancel(fmt.Errorf("a child did not end within %v of SIGTERM", stopTimeout)) })
	defer killer.Stop()
	all.Wait()
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		return cause
	}
	return err // says how far it came, too
}

// awaitEnd asks the broker itself, too: what was acknowledged by a child that was then killed comes
// again. But RocketMQ's client, on which the usual loop is built, forgets positions that it has not written when a
// queue moves, so the broker may never hear of them: there, silence is the end as well.
func (t *trial) awaitEnd(ctx context.Context) error {
	var left int64 = -1
	var last error
	for {
		waiting, err := t.unrelayed(ctx) // before the copies, of which the last ones may come now
		open := t.director.ledger.unsettled()
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%d messages are not relayed, %d copies are not acknowledged, the broker has %d, kills being placed: %v)",
				errors.Join(context.Cause(ctx), last, err), waiting, open, left, t.director.placing())
		case <-time.After(100 * time.Millisecond):
		}
		if waiting > 0 || open > 0 || err != nil {
			continue
		}
		if left, last = t.broker.left(ctx, t.topic, t.topic); last == nil && left == 0 {
			return nil
		}
		if t.subject == setnxSubject && t.director.silent() > silenceIsTheEnd {
			return nil
		}
	}
}

// readDeadLetters takes the dead letters into the ledger, as far as they are whole.
func (t *trial) readDeadLetters(ctx context.Context) error {
	letters, err := t.broker.deadLetters(ctx, t.topic, t.topic)
	if err != nil {
		return err
	}
	for _, m := range letters {
		id := m.ID
		if string(m.Body) != string(sampleOrder(t.topic, id).Body) || m.DeadCause == "" || m.Headers[consumer.OriginHeader] != t.topic {
			id += " (the dead letter is not what was published, or lacks its cause or origin)"
		}
		t.director.ledger.deadLetter(id)
	}
	return nil
}
