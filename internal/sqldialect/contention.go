package sqldialect

import (
	"context"
	"math/rand/v2"
	"time"
)

// tries is how often a statement meets a conflict before its batch is halved.
const tries = 3

// Contend runs a batch of n items as one autocommit statement, or as several where others are in the
// way: a conflict is tried again after a pause of a few milliseconds, then the batch is halved, since
// one row may be all that is contended; a lock that was not to be had in time halves at once. fault is
// told of each single item that still cannot be written. The error is of another kind, or ctx's.
func (d Dialect) Contend(ctx context.Context, n int, run func(from, to int) error, fault func(i int, err error)) error {
	return d.contend(ctx, 0, n, run, fault)
}

func (d Dialect) contend(ctx context.Context, from, to int, run func(from, to int) error, fault func(i int, err error)) error {
	err := d.persist(ctx, func() error { return run(from, to) })
	switch c := Classify(d, err); {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return err
	case c != Conflict && (c != LockWait || d == SQLite): // SQLite's lock is on all of the database
		return err
	case to-from == 1:
		fault(from, err)
		return nil
	}
	half := from + (to-from)/2
	if err := d.contend(ctx, from, half, run, fault); err != nil {
		return err
	}
	return d.contend(ctx, half, to, run, fault)
}

// persist calls run until it meets no conflict, at most tries times.
func (d Dialect) persist(ctx context.Context, run func() error) error {
	for try := 1; ; try++ {
		err := run()
		if err == nil || try == tries || Classify(d, err) != Conflict {
			return err
		}
		if !Pause(ctx, time.Duration(try)*5*time.Millisecond) {
			return err
		}
	}
}

// Pause waits about d, half of it by chance so that two who met do not meet again. It reports
// whether ctx lives.
func Pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + rand.N(d/2+1))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
