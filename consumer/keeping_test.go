package consumer_test

import (
	"context"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/consumer"
)

// positioned is a topic of one partition that keeps a position, as Kafka does: what is not acknowledged comes
// again in the next session, and so does all behind it. It is a Redriver and, by keeping, a Keeper.
type positioned struct {
	log      []consumer.Message
	acked    map[int]bool
	position int // of the next session
	next     int // of this one
	sent     []string
	arrives  func(*positioned) // before each copy is kept
}

type place struct {
	*positioned
	at int
}

func (place) Retry(context.Context, time.Duration, error) error { return nil }
func (place) DeadLetter(context.Context, int, error) error      { return nil }
func (place) GiveBack(context.Context) error                    { return nil }
func (p place) Ack(context.Context) error {
	p.acked[p.at] = true
	for p.acked[p.position] {
		p.position++
	}
	return nil
}

// bury adds the dead letter of m.
func (p *positioned) bury(m consumer.Message, number int) {
	m.Headers = m.DeadLetterHeaders(number, errBoom)
	m.ID = ""
	m.Topic, m.Time = "orders.dlt", time.Now()
	p.log = append(p.log, m)
}

func (p *positioned) Plan(policy consumer.Policy) (consumer.Plan, error) {
	return consumer.Plan{Policy: policy, Scope: "test", Hold: -1}, nil
}

func (p *positioned) Receive(ctx context.Context, most int) (ds []consumer.Delivery, err error) {
	for ; p.next < len(p.log) && len(ds) < most; p.next++ {
		m := p.log[p.next]
		ds = append(ds, consumer.Delivery{Message: &m, Lane: "orders.dlt/0", Settler: place{p, p.next}})
	}
	if len(ds) == 0 {
		<-ctx.Done()
		err = ctx.Err()
	}
	return ds, err
}

func (p *positioned) Close(context.Context) error { return nil }

func (p *positioned) Redrive(_ context.Context, m *consumer.Message) error {
	p.sent = append(p.sent, m.ID+string(m.Body))
	return nil
}

type keeper struct{ *positioned }

func (k keeper) Keep(_ context.Context, m *consumer.Message) error {
	if k.arrives != nil {
		k.arrives(k.positioned)
	}
	c := *m
	c.Headers, c.Time = maps.Clone(m.Headers), time.Now()
	k.log = append(k.log, c)
	return nil
}

// again is one Redrive, an hour after whatever came before; it returns what was sent.
func (p *positioned) again(t *testing.T, to consumer.Redriver, match func(*consumer.Message) bool) []string {
	time.Sleep(time.Hour)
	p.next, p.acked, p.sent = p.position, make(map[int]bool), nil
	n, err := consumer.Redrive(t.Context(), p, to, match)
	require.NoError(t, err)
	require.Len(t, p.sent, n)
	return p.sent
}

func is(id string) func(*consumer.Message) bool {
	return func(m *consumer.Message) bool { return m.ID == id }
}

func TestWhatAFilteredRedriveSentIsNotSentByTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &positioned{}
		for _, id := range []string{"x", "y", "z"} {
			p.bury(consumer.Message{ID: id, Topic: "orders", Body: []byte{'!'}}, 1)
		}
		require.Equal(t, []string{"y!"}, p.again(t, keeper{p}, is("y")))
		require.Empty(t, p.again(t, keeper{p}, is("y")))
		require.Len(t, p.log, 7, "each run copies what it keeps once")
		require.Equal(t, []string{"x!", "z!"}, p.again(t, keeper{p}, nil), "nothing is lost")
		require.Empty(t, p.again(t, keeper{p}, nil))
	})
}

func TestWhatIsDeadLetteredDuringAFilteredRedriveIsLeftForTheNextOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &positioned{}
		p.bury(consumer.Message{ID: "x", Topic: "orders"}, 1)
		p.bury(consumer.Message{ID: "y", Topic: "orders"}, 1)
		p.arrives = func(p *positioned) { // between the copy of x, where the position stays, and the end
			p.arrives = func(p *positioned) { p.bury(consumer.Message{ID: "y", Topic: "orders"}, 2) }
		}
		p.bury(consumer.Message{ID: "z", Topic: "orders"}, 1)
		require.Equal(t, []string{"y"}, p.again(t, keeper{p}, is("y")))
		p.arrives = nil
		require.Equal(t, []string{"y"}, p.again(t, keeper{p}, is("y")), "the second one, once")
		require.Empty(t, p.again(t, keeper{p}, is("y")))
	})
}

func TestRedriveSendsNamelessDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &positioned{}
		p.bury(consumer.Message{Topic: "orders", Body: []byte("a")}, 1)
		p.bury(consumer.Message{Topic: "orders", Body: []byte("b")}, 3)
		p.log = append(p.log, consumer.Message{Topic: "orders.dlt", Body: []byte("put there by hand")})
		require.Equal(t, []string{"a", "b"}, p.again(t, keeper{p}, nil))
	})
}
