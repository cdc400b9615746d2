package rocketmq

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

const (
	resendBatch  = 100
	resendErrors = 10 // that the error of one call names
)

// Resend sends the messages that Unconfirmed lists, all of them, and returns how many a broker has taken. A message that is
// visible already arrives twice, under one ID. It waits for Run, and ends with it.
//
// One that cannot be sent holds up none behind it; only of a topic that does not take one, for no fault of the message's own, no others
// are tried. The error joins the first ten causes, each with the key of its marker. Such a marker stays, and each Resend tries it, until its
// message can be sent. To give it up delete its row by hand: state is 1, and the column k has that key, as bytes.
func (p *TransactionProducer) Resend(ctx context.Context) (sent int, err error) {
	done, err := p.enter(ctx)
	if err != nil {
		return 0, fmt.Errorf("rocketmq: resend: %w", err)
	}
	defer done()
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-p.ending:
			cancel(ErrClosed)
		case <-ctx.Done():
		}
	})
	defer watch.Wait()
	defer cancel(nil)
	r := resending{p: p, deaf: make(map[string]bool)}
	if err = r.all(ctx); err != nil {
		return r.sent, fmt.Errorf("rocketmq: resend: %w", err)
	}
	return r.sent, nil
}

// resending is one call of Resend.
type resending struct {
	p      *TransactionProducer
	sent   int
	deaf   map[string]bool // topics that take none now
	failed int
	errs   []error
}

// all goes through the markers once. What comes meanwhile is too young for them.
func (r *resending) all(ctx context.Context) error {
	age := r.p.givenUpAfter()
	for behind := (place{}); ; {
		ms, err := r.p.markers.unconfirmed(ctx, age, behind, resendBatch)
		if err != nil {
			return errors.Join(append(r.errs, err)...)
		}
		for i := range ms {
			if err := r.one(ctx, &ms[i]); err != nil {
				return errors.Join(append(r.errs, err)...)
			}
			behind = ms[i].place
		}
		if len(ms) < resendBatch {
			return r.sum()
		}
	}
}

// one sends the message of k. The error is one that the others would meet, too.
func (r *resending) one(ctx context.Context, k *waitingMarker) error {
	if r.deaf[k.topic] {
		r.failed++
		return nil
	}
	out, err := r.p.outgoingOf(k)
	if err == nil {
		call, cancel := context.WithTimeout(ctx, prepareTimeout)
		err = r.p.producer.send(call, out)
		cancel()
		r.deaf[k.topic] = err != nil && !errors.Is(err, errTooLarge) && !isCode(err, codeIllegalMessage)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		if r.failed++; len(r.errs) < resendErrors {
			r.errs = append(r.errs, fmt.Errorf("marker %s: %w", k.key, err))
		}
		return nil
	}
	r.sent++
	return r.p.markers.confirm(ctx, []string{k.key})
}

func (r *resending) sum() error {
	errs := r.errs
	if more := r.failed - len(errs); more > 0 {
		errs = append(errs, fmt.Errorf("and %d more were not sent", more))
	}
	return errors.Join(errs...)
}

// outgoingOf is the message of a marker, under the key of its half message.
func (p *TransactionProducer) outgoingOf(k *waitingMarker) (*outgoing, error) {
	m, err := k.message()
	if err != nil {
		return nil, err
	}
	return p.cluster.encode(&m, map[string]string{primitive.PropertyUniqueClientMessageIdKeyIndex: k.key})
}
