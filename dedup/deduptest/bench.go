package deduptest

import (
	"fmt"
	"testing"

	"github.com/idemq/idemq/dedup"
)

// BenchmarkStore measures, at batches of 1, 16, 128 and 1,024: claims of new keys, claims with their
// finish, and claims of keys that are done (duplicates). One iteration is one batch; claims/s is
// comparable across batch sizes. Every key is new, so a store grows with b.N; run with -benchtime=1s
// or shorter where its memory is small. Config.Advance is not used.
func BenchmarkStore(b *testing.B, c Config) {
	c = c.filled(b)
	for _, work := range []struct {
		name string
		run  func(l *load)
	}{
		{"Claim", func(l *load) { l.renew(); l.claim(dedup.Acquired) }},
		{"ClaimFinish", func(l *load) { l.renew(); l.claim(dedup.Acquired); l.finish() }},
		{"Duplicate", func(l *load) { l.claim(dedup.Done) }},
	} {
		b.Run(work.name, func(b *testing.B) {
			for _, size := range []int{1, 16, 128, 1024} {
				b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
					l := newLoad(b, c.Open(b), size)
					if work.name == "Duplicate" {
						l.claim(dedup.Acquired)
						l.finish()
						l.reown()
					}
					b.ReportAllocs()
					for b.Loop() {
						work.run(l)
					}
					b.ReportMetric(float64(b.N)*float64(size)/b.Elapsed().Seconds(), "claims/s")
				})
			}
		})
	}
}

// load is one batch with its buffers, so that a benchmark allocates nothing of its own.
type load struct {
	b      *testing.B
	store  dedup.Store
	claims []dedup.ClaimRequest
	out    []dedup.Verdict
	words  []dedup.FinishRequest
	errs   []error
	serial uint64
}

func newLoad(b *testing.B, s dedup.Store, size int) *load {
	l := &load{
		b: b, store: s, claims: make([]dedup.ClaimRequest, size), out: make([]dedup.Verdict, size),
		words: make([]dedup.FinishRequest, size), errs: make([]error, size),
	}
	for i := range l.claims {
		l.claims[i] = ask(newKey())
	}
	return l
}

// renew makes all keys new: the last eight bytes of each count up.
func (l *load) renew() {
	l.serial++
	for i := range l.claims {
		k := &l.claims[i].Key
		for j := range 8 {
			k[len(k)-1-j] = byte(l.serial >> (8 * j))
		}
	}
}

func (l *load) reown() {
	for i := range l.claims {
		l.claims[i].Owner = newOwner()
	}
}

func (l *load) claim(want dedup.State) {
	clear(l.out)
	if err := l.store.Claim(l.b.Context(), l.claims, l.out); err != nil {
		l.b.Fatal(err)
	}
	for i := range l.out {
		if l.out[i].State != want {
			l.b.Fatalf("claim %d was answered %v, %v; want %v", i, l.out[i].State, l.out[i].Err, want)
		}
	}
}

func (l *load) finish() {
	for i := range l.words {
		l.words[i] = dedup.FinishRequest{Held: heldOf(l.claims[i], l.out[i]), State: dedup.Done}
	}
	clear(l.errs)
	if err := l.store.Finish(l.b.Context(), l.words, l.errs); err != nil {
		l.b.Fatal(err)
	}
	for i, err := range l.errs {
		if err != nil {
			l.b.Fatalf("finish %d: %v", i, err)
		}
	}
}
