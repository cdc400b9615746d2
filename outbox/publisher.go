package outbox

import "context"

// Publisher is the port to a broker: the Publisher of every broker package, or your own. A relay calls it
// from one goroutine at a time; it is not to keep the slices.
type Publisher interface {
	// Publish sends ms in order and answers errs[i] for ms[i]; errs is the caller's, of the same
	// length, zeroed. nil means: the broker has it. An error marked by [Permanent] means that it will never
	// take this message; one marked by [Unavailable] that where it goes nothing is taken at present, which costs it no attempt;
	// any other one costs the message an attempt. No two of ms that a relay gives have one key.
	//
	// A returned error means that the broker could not be asked: it costs no message an attempt and says
	// nothing of any. It must return soon after ctx ends, which a relay's does after 30 s; a relay that is told to stop
	// waits for it.
	Publish(ctx context.Context, ms []Message, errs []error) error
}
