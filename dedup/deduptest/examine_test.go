//lint:file-ignore U1000 what the test uses that mutants_build_test.go writes

package deduptest

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/idemq/idemq/dedup"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// verdict is what was found about one Store. It goes from the test binary that is built with
// mutants to the test that built it, one line of JSON each.
type verdict struct {
	Name     string
	Cases    []string // that failed, by rule and name
	Explored bool     // the exploration failed
	Random   bool     // the random runs failed
}

const verdictMark = "found: "

func (v *verdict) tell(t *testing.T) {
	text, err := json.Marshal(v)
	require.NoError(t, err)
	fmt.Printf("\n%s%s\n", verdictMark, text)
}

// examineCases runs the suite, each case on a Config of its own.
func (v *verdict) examineCases(t *testing.T, rules []rule, open func(tb testing.TB) Config) {
	for _, r := range rules {
		name, _, _ := strings.Cut(r.name, "_")
		for _, tc := range r.cases {
			got := record(t, func(tb testing.TB) {
				e := newEnv(tb, open(tb).filled(tb))
				if e.conf.inapplicable(r.name, "", e.store)+e.conf.inapplicable(r.name, tc.name, e.store) == "" {
					tc.run(e)
				}
			})
			if got.Failed() {
				v.Cases = append(v.Cases, name+"/"+tc.name)
			}
		}
	}
}

// clocked is a memstore whose clock stands still but for Advance.
type clocked struct {
	memory
	at   *time.Time
	fork func() *clocked
}

type memory interface {
	dedup.Store
	dedup.Admin
	SetNow(func() time.Time)
}

// forkable is the Store of any copy of memstore.
type forkable[S any] interface {
	memory
	Fork(func() time.Time) S
}

func newClocked[S forkable[S]](s S, at time.Time) *clocked {
	c := &clocked{memory: s, at: &at}
	c.SetNow(func() time.Time { return *c.at })
	c.fork = func() *clocked { return newClocked(s.Fork(nil), *c.at) }
	return c
}

func (c *clocked) Advance(d time.Duration) { *c.at = c.at.Add(d) }

func (c *clocked) Fork() Forkable { return c.fork() }

func (c *clocked) config() Config {
	return Config{
		Open:    func(testing.TB) dedup.Store { return c },
		Advance: func(_ testing.TB, d time.Duration) { c.Advance(d) },
	}
}

// examineMemory examines a copy of memstore.
func examineMemory[S forkable[S]](t *testing.T, name string, open func() S) {
	t.Parallel()
	v := &verdict{Name: name}
	v.examineCases(t, rules(), func(testing.TB) Config { return newClocked(open(), time.Now()).config() })
	v.Explored = record(t, func(tb testing.TB) { Explore(tb, newClocked(open(), time.Now()), 1, 7) }).Failed()
	v.Random = record(t, func(tb testing.TB) { checkModel(tb, newClocked(open(), time.Now()).config()) }).Failed()
	v.tell(t)
}

// examineRedis examines a copy of redisstore on an embedded server, but for the first rule, which takes
// most of the time: a server that runs one script at a time keeps it whatever the script says.
func examineRedis(t *testing.T, name string, open func(redis.UniversalClient) dedup.Store) {
	t.Parallel()
	v := &verdict{Name: name}
	v.examineCases(t, rules()[1:], func(tb testing.TB) Config {
		server, now := miniredis.RunT(tb), time.Now()
		server.SetTime(now)
		client := redis.NewClient(&redis.Options{Addr: server.Addr()})
		tb.Cleanup(func() { _ = client.Close() })
		return Config{
			Open: func(testing.TB) dedup.Store { return open(client) },
			Advance: func(_ testing.TB, d time.Duration) {
				now = now.Add(d)
				server.SetTime(now)
				server.FastForward(d)
			},
			Corrupt: func(tb testing.TB, k dedup.Key) {
				for _, name := range server.Keys() {
					if strings.HasSuffix(name, string(k[:])) {
						require.NoError(tb, server.Set(name, "no record"))
					}
				}
			},
		}
	})
	v.tell(t)
}
