package sqlstore

import (
	"time"

	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/internal/sqldialect"
)

// SetClock replaces the clock of this process.
func (s *Store) SetClock(now func() time.Time) { s.clock = now }

// Prepared is a statement with parameters for n items, as its call sends them.
type Prepared struct {
	Text string
	Args []any
}

// Statements are all that batches and the sweeper run, with parameters for the given claims, by name.
func (s *Store) Statements(held []dedup.Held) map[string]Prepared {
	b := &batch{s: s, key: func(i int) *dedup.Key { return &held[i].Key }}
	items := make([]int, len(held))
	w := writing{batch: b, records: make(map[int]*found), now: 1}
	f := finishing{batch: b, in: make([]dedup.FinishRequest, len(held))}
	e := extending{batch: b, in: make([]dedup.ExtendRequest, len(held))}
	for i := range held {
		items[i] = i
		w.records[i] = &found{}
		w.records[i].remake(&held[i], 1)
		w.records[i].revision = 1
		f.in[i] = dedup.FinishRequest{Held: held[i], State: dedup.Done}
		e.in[i].Held = held[i]
	}
	all := make(map[string]Prepared)
	add := func(name, text string, args []any) {
		if text != "" {
			all[name] = Prepared{text, s.withClock(args)}
		}
	}
	records := b.rows(recordShape, items, w.put).Args()
	add("read", s.text.read, b.rows(keyShape, items, nil).Args())
	add("probe", s.text.probe, records)
	add("replace", s.text.replace, records)
	add("insist", s.text.insist, records)
	add("free", s.text.free, b.rows(beatShape, items, e.put).Args())
	add("beat", s.text.beat, b.rows(beatShape, items, e.put).Args())
	add("finish", s.text.finish, b.rows(finishShape, items, f.put).Args())
	f.bare = true
	add("word", s.text.word, b.rows(wordShape, items, f.put).Args())
	add("forget", s.text.forget, []any{held[0].Key[:]})
	add("sweep", s.text.sweep, nil)
	add("verdict", s.text.verdict, []any{[]byte("x"), int64(1), int64(1), held[0].Key[:], held[0].Owner[:], int64(held[0].Epoch)})
	if s.text.ask != "" {
		add("ask", s.text.ask, b.rows(askShape, items, func(r *sqldialect.Rows, i int) { putAsk(r, &held[i].ClaimRequest) }).Args())
	}
	return all
}
