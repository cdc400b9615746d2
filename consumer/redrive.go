package consumer

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/idemq/idemq/dedup"
)

// Redriver sends a dead-lettered message back to where it first came from, under the name and
// the redrive number that its dead letter carries, so that it is no duplicate. The
// Publisher of every broker package is one. It may be called again after an error.
type Redriver interface {
	Redrive(ctx context.Context, m *Message) error
}

// Keeper is the optional port of Redrivers to brokers that keep a position per partition or queue instead of single messages:
// there, a dead letter that is left where it is would hold the position, and all behind it that were sent back would be sent
// back once more by the next Redrive. The Publishers for Kafka and RocketMQ are Keepers.
type Keeper interface {
	// Keep publishes m, a dead letter that was received, once more at the end of the topic it is in, headers and all, and
	// returns once the broker has confirmed it. [KeptHeader] is taken from m.Headers. It may be called again after an error.
	Keep(ctx context.Context, m *Message) error
}

// redriveIdle is for how long nothing must come from the dead letters before a redrive ends.
const redriveIdle = 5 * time.Second

// Redrive redrives the messages of deadLetters that match (nil: all of them), named as their
// consumer named them, and acknowledges each once its copy is confirmed. It closes deadLetters, a source of the topic or queue
// of dead letters: on Kafka and RocketMQ in a group of its own, always the same one, kafka.NewSource(cluster, "billing-redrive", []string{"orders.dlt"}, nil) say.
// It ends when nothing has come for 5s on a live session, when ctx ends, or at the first message that cannot be sent.
// n is how many were sent.
//
// A redriven message runs in the group that gave it up, and no other group of its topic takes it for its own. Where that group has another name
// now, its consumer names the old one in Options.FormerScopes, or nobody runs it.
//
// Those that do not match stay dead letters, and so do those that were dead-lettered anew meanwhile, and nameless ones that
// no consumer of this package has given up. Where to is a [Keeper], each that does not match is copied to the end of its topic, and what
// comes from there on is left for the next Redrive. Elsewhere they are held and given back at the end; they
// count as unsettled, so raise the source's limit (on RabbitMQ Prefetch) above their number to look through all dead letters.
//
// A dead letter that is redriven twice runs once as long as its record is remembered (Plan.Retention): both copies carry
// one number. After that it runs again, so redrive from one group, and do not reset its position. A Redrive that dies between sending a
// message and acknowledging it, or whose last acknowledgements do not arrive, sends it again the next time: let that be soon. So does,
// each time, one whose source keeps positions while its Redriver is no Keeper.
func Redrive(ctx context.Context, deadLetters Source, to Redriver, match func(*Message) bool) (n int, err error) {
	switch {
	case deadLetters == nil:
		return 0, errors.New("consumer: Redrive: deadLetters is nil; pass a source of the dead-letter destination")
	case to == nil:
		return 0, errors.New("consumer: Redrive: the Redriver is nil; pass a Publisher of the broker package")
	}
	r := redrive{
		source: deadLetters, to: to, match: match, sent: make(map[sentBack]int),
		begun: time.Now(), token: rand.Text(), ended: make(map[string]bool),
	}
	r.keeper, _ = to.(Keeper)
	err = r.run(ctx)
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	for _, d := range r.others {
		if gerr := d.GiveBack(closing); gerr != nil { // it comes again in any case
			err = errors.Join(err, fmt.Errorf("consumer: redrive: give back %q: %w", short(d.ID), gerr))
		}
	}
	if cerr := deadLetters.Close(closing); cerr != nil {
		err = errors.Join(err, fmt.Errorf("consumer: redrive: close the source: %w", cerr))
	}
	return r.n, err
}

type redrive struct {
	source Source
	to     Redriver
	match  func(*Message) bool
	others []Delivery
	sent   map[sentBack]int // under which number
	n      int

	// Of a Keeper.
	keeper Keeper
	begun  time.Time
	token  string          // tells the copies of this run
	ended  map[string]bool // lanes of which the rest is copies, and what came later
}

type sentBack struct {
	origin, id string
	print      dedup.Fingerprint // of a nameless one
}

func (r *redrive) run(ctx context.Context) error {
	if _, err := r.source.Plan(Policy{}); err != nil {
		return fmt.Errorf("consumer: redrive: %w", err)
	}
	for {
		live := connected(r.source)
		waiting, cancel := context.WithTimeout(ctx, redriveIdle)
		ds, err := r.source.Receive(waiting, receiveBatch)
		idle := err != nil && waiting.Err() != nil
		cancel()
		switch {
		case ctx.Err() != nil:
			r.others = append(r.others, ds...)
			return nil
		case idle && live && connected(r.source): // all the while
			return nil
		case idle:
			continue
		case err != nil:
			return fmt.Errorf("consumer: redrive: receive: %w", err)
		}
		for i, d := range ds {
			if err := r.one(ctx, d); err != nil {
				r.others = append(r.others, ds[i+1:]...)
				return err
			}
		}
	}
}

// one sends d back, or keeps it.
func (r *redrive) one(ctx context.Context, d Delivery) error {
	k := sentBack{origin: d.Headers[OriginHeader]}
	if d.Identify(DefaultRules(), d.Made) {
		k.id = d.ID
	} else {
		k.print = bodyPrint(d.Body)
	}
	number, before := r.sent[k]
	switch failedAgain := before && d.Redrive > number; {
	case r.pastEnd(d) || failedAgain:
		r.others = append(r.others, d)
		return nil
	case d.ID == "" && d.Headers[RedriveHeader] == "", r.match != nil && !r.match(d.Message):
		return r.keep(ctx, d)
	}
	if err := r.to.Redrive(ctx, d.Message); err != nil {
		r.others = append(r.others, d)
		return fmt.Errorf("consumer: redrive: %w", err)
	}
	r.n++
	r.sent[k] = d.Redrive
	if err := d.Ack(ctx); err != nil {
		return fmt.Errorf("consumer: redrive: %q was sent, but its dead letter stays: %w", short(d.ID), err)
	}
	return nil
}

// pastEnd reports that all that was there at the beginning is behind d: what is sent from here on would come before copies
// that the position stops at, and be sent again the next time.
func (r *redrive) pastEnd(d Delivery) bool {
	switch {
	case r.keeper == nil:
		return false
	case d.Headers[KeptHeader] == r.token:
		if d.Lane != "" {
			r.ended[d.Lane] = true
		}
		return true
	}
	return r.ended[d.Lane] || d.Time.After(r.begun)
}

// keep leaves d a dead letter.
func (r *redrive) keep(ctx context.Context, d Delivery) error {
	if r.keeper == nil {
		r.others = append(r.others, d)
		return nil
	}
	m := d.Message.clone()
	if m.Headers == nil {
		m.Headers = make(map[string]string, 1)
	}
	m.Headers[KeptHeader] = r.token
	if err := r.keeper.Keep(ctx, m); err != nil {
		r.others = append(r.others, d)
		return fmt.Errorf("consumer: redrive: keep %q, which does not match: %w", short(d.ID), err)
	}
	if err := d.Ack(ctx); err != nil {
		return fmt.Errorf("consumer: redrive: %q was copied to the end of its topic, but is still in its old place, too: %w", short(d.ID), err)
	}
	return nil
}

// connected is true of a source that does not tell.
func connected(s Source) bool {
	k, ok := s.(Connector)
	return !ok || k.Connected()
}

// elsewhere acknowledges t, and reports so, if it is a redrive of what another group of its topic gave up. This
// group had the message when it was published; its record of that may have expired, so t would run here, too.
func (e *engine) elsewhere(t *task) bool {
	scope := t.redriveOf()
	if scope == "" || scope == t.Scope || slices.Contains(e.c.opts.FormerScopes, scope) {
		return false
	}
	if unsaid, ok := e.quiet.allow("redrive"); ok {
		e.log.Warn("consumer: a message was redriven for another group and is not run here; if that group has now this one's name, name it in Options.FormerScopes",
			"scope", t.Scope, "id", short(t.Message.ID), "for", short(scope), "and_more", unsaid)
	}
	e.ackDuplicates("redrive_elsewhere", t)
	return true
}
