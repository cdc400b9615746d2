package rocketmq

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/internal/sqldialect"
	"github.com/idemq/idemq/outbox"
)

// ErrRolledBack says that the broker asked about a local transaction before it had begun, or
// between two tries of it, and was told "rollback". So it could not commit: nothing of it is
// there, and the message will not be delivered. It may be tried again.
var ErrRolledBack = errors.New("rocketmq: transaction rolled back by check-back")

// TransactionProducer sends a message if and only if a local transaction commits, by half message
// and check-back.
type TransactionProducer struct {
	cluster   Cluster
	wireGroup string
	db        *sql.DB
	opt       TransactionOptions
	log       *slog.Logger
	markers   *markers
	id        string // of the client, unlike any other's
	client    *client
	producer  *producer

	ready     chan struct{} // closed once the first brokers know this process
	told      chan check    // what brokers ask
	toConfirm chan struct{} // capacity 1: a note is to be written

	asked map[string]*conn // of brokers that know this process, of Run alone

	mu        sync.Mutex
	running   bool
	ending    chan struct{} // closed when Run takes no more work
	work      sync.WaitGroup
	horizon   time.Duration // how long a broker asks about a half message
	confirmed []string      // markers whose message is visible
	quiet     limiter
}

// TransactionOptions tune a TransactionProducer; nil is the default.
type TransactionOptions struct {
	// Table is the table of markers: letters, digits and underscores, with a schema before a dot where
	// it is not the connection's own. Default: "idemq_rocketmq_tx".
	Table string
	// Limit is how long a local transaction may take, counted from when its half message is sent,
	// with all repetitions after conflicts. Its context ends then. Default: 1m.
	Limit time.Duration
	// Retention is how long markers and tombstones are kept. It must be longer than Limit, and than
	// the brokers ask for one message: transactionTimeOut and transactionCheckMax times
	// transactionCheckInterval; Run refuses a shorter one. Markers of messages that no broker has confirmed
	// are kept until Resend. Default: 24h.
	Retention time.Duration
	// Tx are the options of local transactions. Default: READ COMMITTED on PostgreSQL and MySQL;
	// SQLite has one kind only.
	Tx *sql.TxOptions
	// Logger takes what is worth knowing but is no error of Send. Default: slog.Default().
	Logger *slog.Logger
}

const (
	defaultMarkers        = "idemq_rocketmq_tx"
	defaultLimit          = time.Minute
	defaultMarkerLifetime = 24 * time.Hour
)

// NewTransactionProducer does no I/O. The group is of producers of this type alone, and every process
// of it must use the same table of the same database.
func NewTransactionProducer(c Cluster, group string, db *sql.DB, d sqldialect.Dialect, o *TransactionOptions) (*TransactionProducer, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	var opt TransactionOptions
	if o != nil {
		opt = *o
	}
	opt.Table = cmp.Or(opt.Table, defaultMarkers)
	opt.Limit = cmp.Or(opt.Limit, defaultLimit)
	opt.Retention = cmp.Or(opt.Retention, defaultMarkerLifetime)
	opt.Logger = cmp.Or(opt.Logger, slog.Default())
	switch {
	case !nameForm.MatchString(group) || len(c.wire(group)) > groupLimit:
		return nil, fmt.Errorf("rocketmq: the producer group %q is no name that brokers take: letters, digits, - and _, at most %d with the namespace", group, groupLimit)
	case db == nil:
		return nil, errors.New("rocketmq: NewTransactionProducer: db is nil; pass what sql.Open returned")
	case opt.Limit < 0:
		return nil, fmt.Errorf("rocketmq: TransactionOptions.Limit %v is negative; leave it zero for %v", opt.Limit, defaultLimit)
	case opt.Retention <= opt.Limit:
		return nil, fmt.Errorf("rocketmq: TransactionOptions.Retention %v is not longer than Limit %v: a transaction could commit after its tombstone is gone, and its message would never be visible; raise Retention or lower Limit", opt.Retention, opt.Limit)
	case opt.Tx != nil && opt.Tx.ReadOnly:
		return nil, errors.New("rocketmq: TransactionOptions.Tx.ReadOnly is set, and no marker could be written; leave it off")
	}
	if opt.Tx == nil && d != sqldialect.SQLite {
		opt.Tx = &sql.TxOptions{Isolation: sql.LevelReadCommitted}
	}
	m, err := newMarkers(db, d, opt.Table)
	if err != nil {
		return nil, fmt.Errorf("rocketmq: NewTransactionProducer: %w", err)
	}
	c.NameServers = slices.Clone(c.NameServers)
	p := &TransactionProducer{
		cluster: c, wireGroup: c.wire(group), db: db, opt: opt, log: opt.Logger, markers: m, id: memberID(),
		ready: make(chan struct{}), told: make(chan check, checkRoom), toConfirm: make(chan struct{}, 1), ending: make(chan struct{}),
		asked: make(map[string]*conn), horizon: longestHorizon,
	}
	p.client = newClient(c, p.hear)
	p.producer = &producer{client: p.client, create: true}
	return p, nil
}

// Migrate creates or upgrades the table of markers; safe to call from every process at start. It
// needs the right to define tables only where there is something to do.
func (p *TransactionProducer) Migrate(ctx context.Context) error {
	if err := p.markers.migrate(ctx); err != nil {
		return fmt.Errorf("rocketmq: migrate: %w", err)
	}
	return nil
}

// Send sends m as a half message, which no consumer sees, calls fn in a transaction and commits
// both. It waits for Run. Where m has no ID it is given one.
//
//   - nil: the transaction is committed and m will be delivered, at once or by check-back.
//   - [ErrRolledBack]: nothing of either is there, and fn may be tried again.
//   - dedup.ErrUnavailable: the answer to COMMIT was lost, so it may have happened. Either both happen
//     or neither; look into the database which.
//   - Any other error is fn's, the database's or the broker's, and nothing of either is there.
//
// fn neither commits nor rolls back by itself, which is dedup.ErrTxEnded: both then follow what fn did. Nor does it pass over an error
// at which MySQL or SQLite ends the transaction (a deadlock, INSERT OR ROLLBACK): it is dedup.ErrTxEnded, too, and the message is rolled back with what
// came before, but what fn writes afterwards the database commits at once, without the message. fn may be called
// several times, in a transaction of its own each: one that a deadlock or a serialization failure ends begins anew. It
// must be over when its context ends, after TransactionOptions.Limit. A panic rolls back and goes on.
func (p *TransactionProducer) Send(ctx context.Context, m outbox.Message, fn func(ctx context.Context, tx *sql.Tx) error) error {
	switch {
	case m.Topic == "":
		return errors.New("rocketmq: send: Message.Topic is empty")
	case fn == nil:
		return fmt.Errorf("rocketmq: send %q: fn is nil; pass the work of the local transaction", m.ID)
	}
	if m.ID == "" {
		m.ID = uniqueKey()
	}
	m.Headers = consumer.OutgoingHeaders(m.Headers)
	done, err := p.enter(ctx)
	if err != nil {
		return fmt.Errorf("rocketmq: send %q: %w", m.ID, err)
	}
	defer done()
	h, err := p.prepare(ctx, &m)
	if err == nil {
		err = p.carryOut(ctx, h, fn)
	}
	if err != nil {
		return fmt.Errorf("rocketmq: send %q: %w", m.ID, err)
	}
	return nil
}

// enter waits for Run, and keeps it from ending before done is called.
func (p *TransactionProducer) enter(ctx context.Context) (done func(), err error) {
	select {
	case <-p.ready:
	case <-p.ending:
		return nil, ErrClosed
	case <-ctx.Done():
		return nil, fmt.Errorf("Run has not yet reached a broker: %w", context.Cause(ctx))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.ending:
		return nil, ErrClosed
	default:
	}
	p.work.Add(1)
	return p.work.Done, nil
}

// half is a half message that a broker has.
type half struct {
	position
	key    string // UNIQ_KEY, and the marker's
	record marker
	addr   string    // of its broker
	begun  time.Time // before it was sent
}

// age is the longer of what the two clocks say: one stops while a machine is suspended, the other
// can be set.
func (h *half) age() time.Duration {
	now := time.Now()
	return max(now.Sub(h.begun), now.Round(0).Sub(h.begun.Round(0)))
}

// prepareTimeout bounds the sending of a half message, repetitions included.
const prepareTimeout = 10 * time.Second

// prepare sends the half message. Each try has a key of its own: were two half messages to share a
// marker, both would become visible. One whose answer was lost finds no marker and is rolled back.
func (p *TransactionProducer) prepare(ctx context.Context, m *outbox.Message) (*half, error) {
	ctx, cancel := context.WithTimeout(ctx, min(prepareTimeout, p.opt.Limit))
	defer cancel()
	home, err := p.markers.home(ctx)
	if err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		h, err := p.prepareOnce(ctx, m, home)
		if err == nil || classify(err) == terminal && !outdated(err, n) || errors.Is(err, errNoTopic) && n > 1 {
			return h, err
		}
		if isCode(err, codeNoTopic) {
			p.client.forgetRoute(p.cluster.wire(m.Topic))
		}
		if sleep(ctx, backoff(n)); ctx.Err() != nil {
			return nil, err
		}
		_, _ = p.client.route(ctx, p.cluster.wire(m.Topic)) // where it cannot be told, the old one is tried again
	}
}

func (p *TransactionProducer) prepareOnce(ctx context.Context, m *outbox.Message, home string) (*half, error) {
	h := &half{key: uniqueKey(), begun: time.Now()}
	out, err := p.cluster.encode(m, halfProperties(h.key, p.wireGroup, home))
	if err != nil {
		return nil, err
	}
	if h.record, err = newMarker(m); err != nil {
		return nil, err
	}
	out.sysFlag |= flagPrepared
	q, addr, err := p.producer.choose(ctx, out)
	if err != nil {
		return nil, err
	}
	reply, err := p.client.store(ctx, addr, q, out, p.wireGroup)
	if err != nil {
		return nil, sendError(out, q, err)
	}
	h.addr = addr
	if h.position, err = reply.position(); err != nil {
		return nil, sendError(out, q, err)
	}
	return h, nil
}
