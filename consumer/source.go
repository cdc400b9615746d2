package consumer

import (
	"context"
	"time"
)

// Source is the port to a broker. Applications construct one and hand it to New, which
// owns it from then on. consumertest.TestSource holds the rules.
type Source interface {
	// Plan fills p's zero fields and tells what they and the broker's settings mean
	// together; an error names both settings and the fix. New calls it before there is a
	// connection, Run again once the broker's own settings could be read (after the first
	// Receive). It does no I/O and may be called concurrently with Receive.
	Plan(p Policy) (Plan, error)
	// Receive waits for at least one delivery and returns at most max. It connects and
	// reconnects by itself and returns an error only when waiting cannot help, or ctx's.
	// Called by one goroutine. Messages of one lane come in their order. The source bounds how
	// many deliveries are unsettled at once.
	Receive(ctx context.Context, max int) ([]Delivery, error)
	// Close ends everything the source began, within ctx: it makes what was acknowledged
	// last, and leaves the rest to be delivered again. Called once, after the last settle.
	Close(ctx context.Context) error
}

// Connector is the optional port of sources that know whether they have a live session.
type Connector interface {
	// Connected is false before the first session and while one is being made. It does not block.
	Connected() bool
}

// Plan is the bargain between a policy and a broker.
type Plan struct {
	Policy                     // complete
	Scope        string        // broker and group or queue, as in "kafka/billing"
	Window       time.Duration // the longest time after which a message can still come back; the consumer adds what crashes may take
	HandlerLimit time.Duration // the broker's own limit for one attempt; 0: none
	// Hold is how long a message in progress elsewhere waits in memory before Settler.Retry.
	// Negative: no end, because the broker cannot postpone a message; the consumer then waits in
	// memory between attempts, too, and never calls Retry.
	Hold time.Duration
	// Why is the sum behind Window, in words. Each term says whether it was read (from client
	// or broker), declared (by an option) or assumed (a default).
	Why       string
	Retention time.Duration // set by the consumer
}

// Delivery is one message and the way to settle it. The source fills Message but leaves its
// naming to the consumer: ID is the broker's own name for the message, Made says whose.
type Delivery struct {
	*Message
	// Made: ID was made by the broker or a client library, which can repeat themselves, not by an
	// application. A hash of the body then becomes part of it.
	Made     bool
	Lane     string          // deliveries of one lane are handled one after the other; "": any order
	Deadline time.Time       // no handler starts that could end after it (the broker would hand out a second copy); zero: none
	Lost     <-chan struct{} // closed when the session or assignment behind the delivery is gone; nothing new starts then, what runs may end
	Settler
}

// Settler says the one final word on a delivery: one of Ack, Retry and GiveBack, once, from any
// goroutine; a second call is an error and changes nothing. Each returns nil only when the word has, as far as the broker tells, arrived;
// after an error, or on a lost session, the broker brings the message back. On a lost session they are no-ops that return nil.
type Settler interface {
	// Ack says that the message need not come again. Where the broker keeps a position instead of
	// single messages (Kafka), nil means: part of the position that is committed within a
	// second, and by Source.Close.
	Ack(ctx context.Context) error
	// Retry asks for the message again after d or later. A cause that wraps
	// dedup.ErrInProgress must never bring the message to a limit that ends it. After an
	// error the delivery is unsettled and Retry may be called again.
	Retry(ctx context.Context, d time.Duration, cause error) error
	// DeadLetter publishes a copy with its cause and this redrive number, and returns once the
	// broker has confirmed it. The delivery is still to be acknowledged. It may be called again
	// after an error. [Message.DeadLetterHeaders] are the copy's headers.
	DeadLetter(ctx context.Context, redrive int, cause error) error
	// GiveBack returns an untouched message, for others, at once, uncounted where the broker can. Where
	// Plan.Hold is negative and the deadline is no farther than Policy.Room, it ends the session, from which all
	// that is unsettled comes again in its order.
	GiveBack(ctx context.Context) error
}
