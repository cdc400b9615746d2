// Package dedup makes a unit of work happen once, whatever its name for it is brought back by.
//
// A [Guard] is what an application holds: one per process, made once with the application's name
// and a [Store], safe for concurrent use, nothing to close.
//
//	guard, err := dedup.New("billing", redisstore.New(client, nil), nil)
//	ran, err := guard.Do(ctx, dedup.Work{Scope: "refunds", ID: refund.ID}, func(ctx context.Context) error {
//		return pay(ctx, refund)
//	})
//
// # The life of a record
//
//	(none) --claim--> in progress --complete--> done
//	                    |  |  |\----condemn---> condemned --dead letter sent--> failed
//	                    |  |  \-----fail------> retryable --claim--> in progress   (attempts + 1)
//	                    |  \--------release---> released  --claim--> in progress   (nothing counted)
//	                    \---lease over--------> claim by another  -> in progress   (crashes + 1)
//
// A record is not deleted when work fails: it keeps attempts, crashes and the last error, so a message
// that fails or kills its process on every try is found. It goes when its retention is over.
//
// # What keeps two owners apart
//
// A claim carries a random owner token, made before the store is asked, so a lost reply changes
// nothing: the same question finds its own answer. Every later call compares that token. The epoch is
// higher with every claim that acquires, even when the record was lost between; a database of your
// own that refuses lower epochs thereby refuses owners of the past:
//
//	UPDATE orders SET …, fence = $1 WHERE id = $2 AND fence < $1
//
// The lease (30s by default, beaten every third of it) bounds the wait after a crash, not the time that
// work takes. The store's clock decides it; the owner, too, holds it for over by its own clock,
// measured from before the question, and then its context ends with cause [ErrLeaseLost].
//
// # What can still happen
//
// The effect of work can happen again only if (1) the process died after the effect and before
// the verdict was stored; (2) a living owner lost its lease (a pause, a store out of reach) and another
// took over; (3) the work returned an error after its effect; (4) the claim ended while its work still
// ran; (5) the store lost the record, or retention was shorter than the time after which the work can
// come again. Each costs at most one more effect.
package dedup
