package outbox

import (
	"bytes"
	"context"
	"crypto/rand"
	"database/sql"
	"log/slog"
	"math/bits"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/idemq/idemq/internal/sqldialect"
)

// leases are the shards of one Run of a relay, and how it comes by them: each relay has at most its
// even part of 64. The database's clock decides. The relay, too, holds them for over by its own clock,
// measured from before it asked.
type leases struct {
	o      *Outbox
	token  []byte // of this Run; every write-back compares it
	name   string
	lease  time.Duration
	log    *slog.Logger
	change chan struct{} // capacity 1: owned is another

	conn *sql.Conn // nil: the pool's

	mu       sync.Mutex
	owned    uint64 // shards to read
	leaving  uint64 // shards to give to others once nothing of them is under way
	busy     [shards]int
	until    time.Time
	sweeping bool // whether the turn to sweep is ours
	joined   bool
	failing  bool
}

func newLeases(o *Outbox, name string, lease time.Duration, log *slog.Logger) *leases {
	l := &leases{o: o, token: make([]byte, 16), name: name, lease: lease, log: log, change: make(chan struct{}, 1)}
	rand.Read(l.token) // never fails: crypto/rand aborts the process instead
	return l
}

// mask is the shards to read now.
func (l *leases) mask() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Now().After(l.until) {
		return 0
	}
	return l.owned &^ l.leaving
}

// hold counts rows of a lane's shard that are under way, so that the shard stays until they are written back.
func (l *leases) hold(lane int64, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy[shardOf(lane)] += n
}

// keptFrom is the size of a pool of which a connection can be spared.
const keptFrom = 4

// connect keeps a connection, where the pool is bounded, so that leases live while transactions have all others.
// Several relays on one Outbox keep several only where that leaves the pool its size.
func (l *leases) connect(ctx context.Context) error {
	if l.conn != nil || l.o.dialect == SQLite || !l.o.spare() {
		return nil
	}
	c, err := l.o.db.Conn(ctx)
	if err != nil {
		l.o.unspare()
		return err
	}
	l.conn = c
	return nil
}

func (l *leases) disconnect() {
	if l.conn != nil {
		_ = l.conn.Close()
		l.conn = nil
		l.o.unspare()
	}
}

// spare reports whether one more connection may be kept, and counts it.
func (o *Outbox) spare() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.db.Stats().MaxOpenConnections-o.kept < keptFrom {
		return false
	}
	o.kept++
	return true
}

func (o *Outbox) unspare() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.kept--
}

func (l *leases) exec(ctx context.Context, text string, args []any) (int64, error) {
	if l.conn == nil {
		return l.o.exec(ctx, text, args)
	}
	res, err := l.conn.ExecContext(ctx, text, args...)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

func (l *leases) query(ctx context.Context, text string, args []any) (*sql.Rows, error) {
	if l.conn == nil {
		return l.o.query(ctx, text, args)
	}
	return l.conn.QueryContext(ctx, text, args...)
}

// run keeps the leases until ctx ends, and then gives them back.
func (l *leases) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer l.disconnect()
	for {
		select {
		case <-ctx.Done():
			l.leaveAll(ctx)
			return
		case <-timer.C:
		}
		timer.Reset(l.tick(ctx))
	}
}

// tick returns how long to wait for the next one.
func (l *leases) tick(ctx context.Context) time.Duration {
	call, cancel := context.WithTimeout(ctx, max(l.lease/3, time.Second))
	defer cancel()
	err := l.connect(call)
	var wait time.Duration
	if err == nil {
		wait, err = l.keep(call)
	}
	if err == nil {
		l.failing = false
		return wait
	}
	l.disconnect() // it may be broken, or lead to a server that was the primary once and answers that it must not write
	if ctx.Err() == nil && !l.failing {
		l.failing = true
		l.log.Warn("outbox: the leases of the shards cannot be kept; trying again", "table", l.o.table.String(), "error", l.o.explain(err))
	}
	l.expire()
	return max(l.lease/10, 10*time.Millisecond)
}

// expire drops the shards whose lease is over by our own clock.
func (l *leases) expire() {
	l.mu.Lock()
	over := l.owned != 0 && time.Now().After(l.until)
	if over {
		l.owned, l.leaving, l.sweeping = 0, 0, false
	}
	l.mu.Unlock()
	if over {
		l.log.Warn("outbox: the leases of all shards are over, since the database was out of reach", "table", l.o.table.String())
		l.changed()
	}
}

func (l *leases) changed() {
	select {
	case l.change <- struct{}{}:
	default:
	}
}

// keep says that this relay lives, keeps its shards, takes what is free of its part and gives away
// what is above it.
func (l *leases) keep(ctx context.Context) (wait time.Duration, err error) {
	us := l.lease.Microseconds()
	asked := time.Now()
	if err := l.live(ctx, us); err != nil {
		return 0, err
	}
	if _, err := l.exec(ctx, l.o.text.beat, l.o.withClock([]any{us, l.token})); err != nil {
		return 0, err
	}
	v, err := l.look(ctx)
	if err != nil {
		return 0, err
	}
	fair := (shards + v.relays - 1) / max(v.relays, 1)
	if lack := fair - bits.OnesCount64(v.mine); lack > 0 && v.free != 0 || v.turn {
		if err := l.take(ctx, pick(v.free, lack), v.turn, us); err != nil {
			return 0, err
		}
		if v, err = l.look(ctx); err != nil {
			return 0, err
		}
	}
	l.have(v, asked.Add(l.lease))
	wait = l.lease / 3
	if bits.OnesCount64(v.mine) < fair {
		wait = l.lease / 10 // others are about to give some away, or to die
	}
	return l.give(ctx, fair, wait)
}

func (l *leases) live(ctx context.Context, us int64) error {
	if l.joined {
		n, err := l.exec(ctx, l.o.text.alive, l.o.withClock([]any{us, l.token}))
		if err != nil || n > 0 {
			return err
		}
	}
	_, err := l.exec(ctx, l.o.text.join, l.o.withClock([]any{us, l.token, sqldialect.CleanText(l.name, 255)}))
	l.joined = err == nil || sqldialect.Classify(l.o.dialect, err) == sqldialect.Duplicate // its reply was lost
	if l.joined {
		return nil
	}
	return err
}

// view is who has which shard.
type view struct {
	mine, free uint64
	sweeper    bool // is ours
	turn       bool // to sweep is nobody's
	relays     int
}

func (l *leases) look(ctx context.Context) (v view, err error) {
	rows, err := l.query(ctx, l.o.text.look, l.o.withClock(nil))
	if err != nil {
		return v, err
	}
	defer rows.Close()
	for rows.Next() {
		var shard int
		var over int64
		var token []byte
		if err := rows.Scan(&shard, &token, &over, &v.relays); err != nil {
			return v, err
		}
		mine := bytes.Equal(token, l.token)
		switch {
		case shard == sweeper:
			v.sweeper, v.turn = mine, over != 0
		case shard < 0 || shard > sweeper:
		case mine:
			v.mine |= 1 << shard
		case over != 0:
			v.free |= 1 << shard
		}
	}
	return v, rows.Err()
}

// pick chooses n of the shards in mask, by chance: others choose at the same moment.
func pick(mask uint64, n int) (some uint64) {
	for i, s := range mathrand.Perm(shards) {
		if n <= 0 || i == shards {
			break
		}
		if mask&(1<<s) != 0 {
			some |= 1 << s
			n--
		}
	}
	return some
}

func (l *leases) take(ctx context.Context, mask uint64, turn bool, us int64) error {
	q := sqldialect.NewRows(l.o.dialect, takeShape, shards)
	for s := range shards + 1 {
		if s < shards && mask&(1<<s) != 0 || s == sweeper && turn {
			q.Int(int64(s))
			q.Bytes(l.token)
			q.Int(us)
		}
	}
	if q.Len() == 0 {
		return nil
	}
	_, err := l.exec(ctx, l.o.text.take, l.o.withClock(q.Args()))
	return err
}

// have notes what the database said.
func (l *leases) have(v view, until time.Time) {
	l.mu.Lock()
	changed := l.owned != v.mine || time.Now().After(l.until) // they were over for a moment
	l.owned, l.leaving, l.until, l.sweeping = v.mine, l.leaving&v.mine, until, v.sweeper
	l.mu.Unlock()
	if changed {
		l.changed()
	}
}

// give lets go of the shards above our part, those first of which nothing is under way; the others
// are not read any more and go soon.
func (l *leases) give(ctx context.Context, fair int, wait time.Duration) (time.Duration, error) {
	l.mu.Lock()
	if spare := bits.OnesCount64(l.owned) - fair; spare > 0 {
		idle := uint64(0)
		for s := range shards {
			if l.busy[s] == 0 {
				idle |= 1 << s
			}
		}
		leaving := pick(l.owned&idle, spare)
		l.leaving = leaving | pick(l.owned&^idle, spare-bits.OnesCount64(leaving))
	} else {
		l.leaving = 0
	}
	free := uint64(0)
	for s := range shards {
		if l.leaving&(1<<s) != 0 && l.busy[s] == 0 {
			free |= 1 << s
		}
	}
	rest := l.leaving != free
	l.owned, l.leaving = l.owned&^free, l.leaving&^free
	l.mu.Unlock()
	if free != 0 {
		l.changed()
		if err := l.letGo(ctx, free); err != nil {
			return 0, err
		}
	}
	if rest {
		wait = min(wait, 50*time.Millisecond)
	}
	return wait, nil
}

func (l *leases) letGo(ctx context.Context, mask uint64) error {
	q := sqldialect.NewRows(l.o.dialect, shardShape, shards)
	for s := range shards {
		if mask&(1<<s) != 0 {
			q.Int(int64(s))
		}
	}
	_, err := l.exec(ctx, l.o.text.release, q.Args(l.token))
	return err
}

// cleanUp is how long what ends a Run may take once ctx has ended.
const cleanUp = 5 * time.Second

func (l *leases) leaveAll(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	q := sqldialect.NewRows(l.o.dialect, shardShape, shards)
	for s := range shards + 1 {
		q.Int(int64(s))
	}
	_, err := l.exec(ctx, l.o.text.release, q.Args(l.token))
	if err == nil {
		_, err = l.exec(ctx, l.o.text.leave, []any{l.token})
	}
	if err != nil {
		l.log.Warn("outbox: the shards could not be given back; others take them when their lease is over", "table", l.o.table.String(), "error", err)
	}
}
