package consumer_test

import (
	"context"
	"database/sql"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/memstore"
)

// flaky is a database that cuts transactions off, but for the 7th and from the 14th on.
type flaky struct {
	*memstore.Store
	runs int
}

func (f *flaky) InTx(ctx context.Context, q dedup.FinishRequest, work func(*sql.Tx) error) error {
	if f.runs++; f.runs < 14 && f.runs != 7 {
		return fmt.Errorf("%w: bad connection", dedup.ErrUnavailable)
	}
	if err := work(nil); err != nil {
		return err
	}
	out := make([]error, 1)
	if err := f.Finish(ctx, []dedup.FinishRequest{q}, out); err != nil {
		return err
	}
	return out[0]
}

func TestTransactionThatWasNotCutOffEndsARowOfThoseThatWere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{Store: memstore.New()}
		b := kafkaLike()
		b.Publish(message("m1", "lane"))
		runs := 0
		c, err := consumer.NewInTx(b, newGuard(t, f), func(context.Context, *sql.Tx, *consumer.Message) error {
			if runs++; runs == 1 {
				return errBoom
			}
			return nil
		}, &consumer.Options{Policy: consumer.Policy{MaxAttempts: 2}})
		require.NoError(t, err)
		stats := b.Drain(t, c)
		require.EqualValues(t, 1, stats.Done, "twelve were cut off, but never ten in a row")
		require.Zero(t, stats.DeadLettered)
	})
}
