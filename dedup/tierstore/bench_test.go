package tierstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/redisstore"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/dedup/tierstore"
	"github.com/idemq/idemq/internal/testenv"
)

// BenchmarkBesideSQL has the tier and its database alone in one run, batch by batch in turn: claims,
// of which some are duplicates, and the finish of the others. sql-us and tier-us are microseconds a
// message; sql/tier is how many times faster the tier is; asked is how many claims in a hundred SQL was asked for.
func BenchmarkBesideSQL(b *testing.B) {
	for _, base := range []struct {
		name    string
		dialect sqlstore.Dialect
		dsn     func(testing.TB) string
	}{
		{"postgresql", sqlstore.PostgreSQL, testenv.PostgreSQL}, {"mariadb", sqlstore.MySQL, testenv.MySQL},
	} {
		for _, size := range []int{1, 16, 128} {
			for _, duplicates := range []int{0, 50, 100} {
				b.Run(fmt.Sprintf("%s/batch=%d/duplicates=%d%%", base.name, size, duplicates), func(b *testing.B) {
					besideSQL(b, base.dialect, base.dsn(b), size, duplicates)
				})
			}
		}
	}
}

func besideSQL(b *testing.B, d sqlstore.Dialect, dsn string, size, duplicates int) {
	db := database(b, d, dsn)
	alone, _ := table(b, db, d)
	under, _ := table(b, db, d)
	client := redis.NewClient(&redis.Options{Addr: testenv.Redis(b), ContextTimeoutEnabled: true})
	defer client.Close()
	tier := tierstore.New(under, redisstore.New(client, nil))
	known := make([]dedup.Key, 1024)
	for i := range known {
		known[i] = newKey()
	}
	for at := 0; at < len(known); at += 128 {
		handle(b, alone, known[at:at+128])
		handle(b, tier, known[at:at+128])
	}
	var took [2]time.Duration
	before := tier.Stats().Asked
	keys, n, old := make([]dedup.Key, size), 0, 0
	for b.Loop() {
		for i := range keys {
			if n++; n*duplicates/100 > (n-1)*duplicates/100 { // spread evenly
				old++
				keys[i] = known[old%len(known)]
			} else {
				keys[i] = newKey()
			}
		}
		for i, s := range []dedup.Store{alone, tier} {
			begun := time.Now()
			handle(b, s, keys)
			took[i] += time.Since(begun)
		}
	}
	each := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 / float64(n) }
	b.ReportMetric(0, "ns/op") // of both together: of no use
	b.ReportMetric(each(took[0]), "sql-us")
	b.ReportMetric(each(took[1]), "tier-us")
	b.ReportMetric(float64(took[0])/float64(took[1]), "sql/tier")
	b.ReportMetric(100*float64(tier.Stats().Asked-before)/float64(n), "asked-%")
}

// handle claims keys and finishes what it acquired.
func handle(b *testing.B, s dedup.Store, keys []dedup.Key) {
	in, out := make([]dedup.ClaimRequest, len(keys)), make([]dedup.Verdict, len(keys))
	for i, k := range keys {
		in[i] = ask(k)
	}
	require.NoError(b, s.Claim(b.Context(), in, out))
	var fin []dedup.FinishRequest
	for i, v := range out {
		if v.State == dedup.Acquired {
			fin = append(fin, dedup.FinishRequest{Held: dedup.Held{ClaimRequest: in[i], Epoch: v.Epoch, Attempt: v.Attempt}, State: dedup.Done})
			continue
		}
		require.Equal(b, dedup.Done, v.State)
	}
	if len(fin) > 0 {
		errs := make([]error, len(fin))
		require.NoError(b, s.Finish(b.Context(), fin, errs))
		for _, err := range errs {
			require.NoError(b, err)
		}
	}
}
