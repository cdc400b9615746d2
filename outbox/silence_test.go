package outbox_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/outbox"
)

// silent are connections that say nothing any more to a statement of relay's, while those for leases go on.
func silent(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// spied is the base's outbox by a pool with a spy, whose before and after must be set before anything runs.
func (b *base) spied(t *testing.T) (*outbox.Outbox, *spy) {
	db, s := counted(t, open(t, b.driver, b.dsn), b.dsn)
	return b.outbox(t, db, nil), s
}

// TestConnectionsThatFallSilentHoldTheRelayUpForAWhileOnly: nobody closes them, and leases are kept by others.
func TestConnectionsThatFallSilentHoldTheRelayUpForAWhileOnly(t *testing.T) {
	t.Parallel()
	for name, statement := range map[string]func(read, mark, fail string) string{
		"read": func(read, _, _ string) string { return read },
		"mark": func(_, mark, _ string) string { return mark },
		"fail": func(_, _, fail string) string { return fail },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBase(t, outbox.SQLite)
			o, s := b.spied(t)
			read, mark, fail, _, _ := o.Statements()
			var calls atomic.Int64
			s.before = func(ctx context.Context, query string) error {
				if strings.HasSuffix(query, statement(read, mark, fail)) && calls.Add(1) == 1 {
					return silent(ctx)
				}
				return nil
			}
			var asked atomic.Int64
			b.write(t, outbox.Message{ID: "a", Topic: "t"})
			run(t, o, publisher(func(_ []outbox.Message, errs []error) error {
				if name == "fail" && asked.Add(1) == 1 {
					errs[0] = errors.New("once more")
				}
				return nil
			}), outbox.RelayOptions{Lease: 3 * time.Second, Backoff: time.Millisecond})
			b.awaitSent(t)
			require.Greater(t, calls.Load(), int64(1))
		})
	}
}

// TestRunEndsWhileTheDatabaseIsSilent: what the broker has cannot be noted any more, and others publish it again.
func TestRunEndsWhileTheDatabaseIsSilent(t *testing.T) {
	t.Parallel()
	b := newBase(t, outbox.SQLite)
	o, s := b.spied(t)
	_, mark, _, _, _ := o.Statements()
	asked := make(chan struct{}, 1000)
	s.before = func(ctx context.Context, query string) error {
		if !strings.HasSuffix(query, mark) {
			return nil
		}
		asked <- struct{}{}
		return silent(ctx)
	}
	b.write(t, outbox.Message{ID: "a", Topic: "t"})
	said := make(logged, 1000)
	stop := run(t, o, takesAll, outbox.RelayOptions{Lease: time.Hour, Logger: slog.New(said)})
	<-asked
	stop()
	close(said)
	var all []string
	for r := range said {
		all = append(all, r.Message)
	}
	require.Contains(t, strings.Join(all, "\n"), "messages that were sent will be sent again")
}

// TestFailedReadsDoNotAddUpOverGoodOnes: on a quiet system nothing is written back, which would say that all is well.
func TestFailedReadsDoNotAddUpOverGoodOnes(t *testing.T) {
	t.Parallel()
	b := newBase(t, outbox.SQLite)
	o, s := b.spied(t)
	read, _, _, _, _ := o.Statements()
	var reads atomic.Int64
	enough := make(chan struct{})
	s.before = func(_ context.Context, query string) error {
		if query != read {
			return nil
		}
		if n := reads.Add(1); n == 20 {
			close(enough)
		} else if n%2 == 0 {
			return errors.New("the network blinked")
		}
		return nil
	}
	said := make(logged, 1000)
	stop := run(t, o, takesAll, outbox.RelayOptions{Poll: time.Millisecond, Backoff: time.Millisecond, MaxBackoff: time.Hour, Logger: slog.New(said)})
	<-enough
	stop()
	close(said)
	waits := 0
	for r := range said {
		r.Attrs(func(a slog.Attr) bool {
			if a.Key == "after" {
				waits++
				require.LessOrEqual(t, a.Value.Duration(), time.Millisecond)
			}
			return true
		})
	}
	require.GreaterOrEqual(t, waits, 9, "more of them before it has stopped")
}

// TestLostReplyToANoteCostsNoSecondAttempt: the note is in the table, and is made again.
func TestLostReplyToANoteCostsNoSecondAttempt(t *testing.T) {
	eachDB(t, func(t *testing.T, b *base) {
		o, s := b.spied(t)
		_, _, fail, _, _ := o.Statements()
		var notes atomic.Int64
		s.after = func(query string) error {
			if strings.HasSuffix(query, fail) && notes.Add(1) <= 4 {
				return io.ErrUnexpectedEOF
			}
			return nil
		}
		var asked atomic.Int64
		run(t, o, publisher(func(_ []outbox.Message, errs []error) error {
			asked.Add(1)
			errs[0] = errors.New("not now")
			return nil
		}), outbox.RelayOptions{MaxAttempts: 3, Backoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond})
		b.write(t, outbox.Message{ID: "a", Topic: "t"})
		b.awaitStats(t, 0, 1)
		require.EqualValues(t, 3, asked.Load())
		require.GreaterOrEqual(t, notes.Load(), int64(6), "the last one is counted after it is in the table")
		var attempts int
		require.NoError(t, b.db.QueryRow("SELECT attempts FROM "+b.table).Scan(&attempts))
		require.Equal(t, 3, attempts)
	})
}

// logged gets each line of a log.
type logged chan slog.Record

func (l logged) Enabled(context.Context, slog.Level) bool      { return true }
func (l logged) Handle(_ context.Context, r slog.Record) error { l <- r; return nil }
func (l logged) WithAttrs([]slog.Attr) slog.Handler            { return l }
func (l logged) WithGroup(string) slog.Handler                 { return l }
