package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"sync"

	"github.com/idemq/idemq/dedup"
)

// Above READ COMMITTED PostgreSQL refuses to change a row that was changed after the transaction's snapshot. A
// beat changes the claim's row, so the verdict of work during which one goes out would be refused, each time anew. There
// the transaction locks the row with its first statement, the one that takes the snapshot. From then on the lock
// stands for the lease: takeovers leave out what is locked and answer InProgress, whatever the lease in the row says,
// and beats of this owner find the row locked, and write nothing. The server frees the lock with the transaction, however that ends.

// locked are the owners whose rows transactions of this Store have locked.
type locked struct {
	mu     sync.Mutex
	owners map[dedup.Owner]lockedRow
}

type lockedRow struct {
	epoch uint64
	alone bool // as the row says
}

func (l *locked) put(h *dedup.Held, alone bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owners == nil {
		l.owners = make(map[dedup.Owner]lockedRow)
	}
	l.owners[h.Owner] = lockedRow{h.Epoch, alone}
}

func (l *locked) drop(o dedup.Owner) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.owners, o)
}

// keeps reports that a lock does all that the beat is to do. That the owner runs alone must be in the row.
func (l *locked) keeps(q *dedup.ExtendRequest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	row, ok := l.owners[q.Owner]
	return ok && row.epoch == q.Epoch && (row.alone || !q.Alone)
}

// lock locks the claim's row in tx, and ends tx where it cannot be had.
func (s *Store) lock(ctx context.Context, tx *sql.Tx, f *dedup.FinishRequest) error {
	var alone int64
	err := tx.QueryRowContext(ctx, s.text.lock, f.Key[:], f.Owner[:], int64(f.Epoch)).Scan(&alone)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return s.afterMiss(ctx, tx, f)
	case err != nil:
		return s.afterVerdict(ctx, tx, "lock the claim", err)
	}
	s.locked.put(&f.Held, alone != 0)
	return nil
}

// unlock is called after the transaction, which ended with err. Where it was rolled back the lease in the row may be
// long over, so it begins anew, also where ctx has ended; without an answer the next beat does that.
func (s *Store) unlock(ctx context.Context, f *dedup.FinishRequest, err error) {
	s.locked.drop(f.Owner)
	if err == nil || errors.Is(err, dedup.ErrSuperseded) || errors.Is(err, dedup.ErrRecordLost) || errors.Is(err, dedup.ErrUnavailable) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUp)
	defer cancel()
	_ = s.Extend(ctx, []dedup.ExtendRequest{{Held: f.Held}}, make([]error, 1))
}
