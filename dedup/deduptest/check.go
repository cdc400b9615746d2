package deduptest

import (
	"errors"
	"testing"
	"time"

	"github.com/idemq/idemq/dedup"
	"pgregory.net/rapid"
)

// CheckModel drives the Store through long random runs of batched calls by several owners on
// several keys and compares every answer with a model of the rules: claims of every kind, repeated
// ones, beats and words of owners past and present, leases and retentions that end, a store that
// went back. A failing run is shrunk and its seed printed; rapid's flag -rapid.checks says how many
// runs there are, by its default 100. With Config.Advance by its default every run sleeps about
// ten times Config.Lease.
func CheckModel(t *testing.T, c Config) { checkModel(t, c) }

func checkModel(tb testing.TB, c Config) {
	e := newEnv(tb, c.filled(tb))
	rapid.Check(tb, func(t *rapid.T) {
		m := &machine{e: e, t: t, keys: make([]modelled, rapid.IntRange(1, 3).Draw(t, "keys"))}
		for i := range m.keys {
			m.keys[i].key = newKey()
		}
		for range rapid.IntRange(20, 150).Draw(t, "steps") {
			m.step()
		}
	})
}

func (m *machine) step() {
	switch n := rapid.IntRange(0, 15).Draw(m.t, "step"); {
	case n < 5:
		m.claim()
	case n < 6:
		m.again()
	case n < 9:
		m.beat()
	case n < 13:
		m.finish()
	case n < 15:
		m.runOut()
	default:
		m.goesBack()
	}
}

// machine is one random run.
type machine struct {
	e    *env
	t    *rapid.T
	keys []modelled
}

// modelled is a key, its model, and the claims that were ever granted on it, of owners which may
// still speak, however late.
type modelled struct {
	key    dedup.Key
	life   life
	given  uint64 // the highest epoch that the record ever had
	owners []dedup.Held
}

// some draws the keys that the next call is for, and for each one of those who may make it, the
// newest most often.
func (m *machine) some() (at, who []int) {
	for i := range m.keys {
		n := len(m.keys[i].owners)
		if n == 0 || rapid.IntRange(0, 3).Draw(m.t, "key is in the batch") == 3 {
			continue
		}
		age := rapid.SampledFrom([]int{0, 0, 0, 0, 1, 2}).Draw(m.t, "owner by age")
		at, who = append(at, i), append(who, max(n-1-age, 0))
	}
	return at, who
}

func (m *machine) claim() {
	m.tick()
	t := m.t
	var at []int
	var in []dedup.ClaimRequest
	for i := range m.keys {
		if !rapid.Bool().Draw(t, "key is in the batch") {
			continue
		}
		q := ask(m.keys[i].key)
		q.Redrive = rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 1, 2}).Draw(t, "redrive")
		q.MustExist = rapid.IntRange(0, 7).Draw(t, "must exist") == 7
		if p := rapid.IntRange(0, 9).Draw(t, "fingerprint"); p > 6 {
			p = max(p, 8) // 8 twice as often as 9
			q.Fingerprint = dedup.Fingerprint{byte(p)}
		}
		at, in = append(at, i), append(in, q)
	}
	m.ask(at, in)
}

// again repeats claims: their replies were lost, or a client library retried.
func (m *machine) again() {
	at, who := m.some()
	in := make([]dedup.ClaimRequest, len(at))
	for j, i := range at {
		in[j] = m.keys[i].owners[who[j]].ClaimRequest
	}
	m.ask(at, in)
}

func (m *machine) ask(at []int, in []dedup.ClaimRequest) {
	out := make([]dedup.Verdict, len(in))
	if err := m.e.store.Claim(m.e.ctx, in, out); err != nil {
		m.t.Fatalf("Claim of %d: %v", len(in), err)
	}
	for j, i := range at {
		k := &m.keys[i]
		was, got := k.life, out[j]
		next, want := was.claim(in[j], got.Epoch)
		if !sameVerdict(want, got) {
			m.t.Fatalf("claim %+v was answered %+v; the model says %+v from %+v", in[j], got, want, was)
		}
		anew := next.owner != was.owner || was.state == 0
		if anew && next.held && got.Epoch <= k.given {
			m.t.Fatalf("a claim acquired epoch %d; %d was given before", got.Epoch, k.given)
		}
		k.become(next)
		if anew && next.held && next.owner == in[j].Owner {
			k.owners = append(k.owners, heldOf(in[j], got))
		}
	}
}

func (k *modelled) become(l life) {
	k.life, k.given = l, max(k.given, l.epoch)
}

// tick keeps the store's clock ahead of the epochs, which grow with it: one that gives more than
// one a millisecond runs ahead of it, and would start the next life of a key below.
func (m *machine) tick() { m.e.conf.Advance(m.e.TB, 2*time.Millisecond) }

// newest is the highest epoch that anybody knows of.
func (k *modelled) newest() uint64 {
	newest := k.given
	for i := range k.owners {
		newest = max(newest, k.owners[i].Epoch)
	}
	return newest
}

func (m *machine) beat() {
	at, who := m.some()
	in := make([]dedup.ExtendRequest, len(at))
	for j, i := range at {
		in[j] = dedup.ExtendRequest{Held: m.keys[i].owners[who[j]], Alone: rapid.IntRange(0, 2).Draw(m.t, "alone") == 0}
	}
	m.extend(at, in)
}

func (m *machine) extend(at []int, in []dedup.ExtendRequest) {
	out := make([]error, len(in))
	if err := m.e.store.Extend(m.e.ctx, in, out); err != nil {
		m.t.Fatalf("Extend of %d: %v", len(in), err)
	}
	for j, i := range at {
		was := m.keys[i].life
		next, want := was.extend(in[j])
		if !errors.Is(out[j], want) {
			m.t.Fatalf("beat %+v was answered %v; the model says %v from %+v", in[j], out[j], want, was)
		}
		m.keys[i].become(next)
	}
}

func (m *machine) finish() {
	at, who := m.some()
	in := make([]dedup.FinishRequest, len(at))
	for j, i := range at {
		s := rapid.SampledFrom(outcomes).Draw(m.t, "outcome")
		in[j] = finishOf(m.keys[i].owners[who[j]], s)
	}
	out := make([]error, len(in))
	if err := m.e.store.Finish(m.e.ctx, in, out); err != nil {
		m.t.Fatalf("Finish of %d: %v", len(in), err)
	}
	for j, i := range at {
		k := &m.keys[i]
		was := k.life
		next, want := was.finish(in[j])
		if !errors.Is(out[j], want) {
			m.t.Fatalf("finish %+v was answered %v; the model says %v from %+v", in[j], out[j], want, was)
		}
		k.become(next)
		if in[j].State == dedup.Condemned && !errors.Is(want, dedup.ErrSuperseded) && next.held {
			k.owners[who[j]].Condemned, k.owners[who[j]].LastError = true, in[j].Reason
		}
	}
}

// runOut ends the leases of all that is held, and now and then its retention, by a last, short beat
// of the owners, who then go silent. All other leases are longer than any run.
func (m *machine) runOut() {
	retention, then := keep, life.lapse
	if rapid.IntRange(0, 5).Draw(m.t, "retention ends too") == 5 {
		retention, then = m.e.conf.Lease, func(life) life { return life{} }
	}
	var at []int
	var in []dedup.ExtendRequest
	for i := range m.keys {
		k := &m.keys[i]
		for _, h := range k.owners {
			if h.Owner == k.life.owner && k.life.held && !k.life.gone(h) {
				h.Lease, h.Retention = m.e.conf.Lease, retention
				at, in = append(at, i), append(in, dedup.ExtendRequest{Held: h})
				break // a token that asked again in a new life stands there twice; a batch has a key once
			}
		}
	}
	if len(at) == 0 {
		return
	}
	m.extend(at, in)
	m.e.pass()
	for _, i := range at {
		m.keys[i].life = then(m.keys[i].life)
	}
}

// goesBack makes an owner's claim newer than the record: seen from the owner, the store has gone
// back to an earlier one.
func (m *machine) goesBack() {
	at, who := m.some()
	m.tick()
	for j, i := range at {
		m.keys[i].owners[who[j]].Epoch = m.keys[i].newest() + 1
	}
}
