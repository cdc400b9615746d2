package dedup

import (
	"sync"
	"sync/atomic"
	"time"
)

// unsureOwners remembers the owner tokens of claims whose answer was lost. The store may
// hold such a claim for us; asking again under the same token finds it, where a new token
// would have to wait for the lease to end and then count a crash that never was.
type unsureOwners struct {
	n  atomic.Int64
	mu sync.Mutex
	m  map[question]unsureOwner
}

// question is what a token was asked with. To its owner a record answers what it is, whatever the owner
// asks: a redriven copy would be told, under the token of an older one, that it is condemned still.
type question struct {
	key       Key
	print     Fingerprint
	redrive   int
	mustExist bool
}

func questionOf(q *ClaimRequest) question {
	return question{q.Key, q.Fingerprint, q.Redrive, q.MustExist}
}

type unsureOwner struct {
	owner Owner
	until time.Time
}

// maxUnsure bounds the memory of a long outage; beyond it a lease is waited for.
const maxUnsure = 100_000

func (u *unsureOwners) put(in []ClaimRequest, lease time.Duration) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if u.m == nil {
		u.m = make(map[question]unsureOwner)
	}
	for k, o := range u.m {
		if len(u.m)+len(in) <= maxUnsure {
			break
		}
		if now.After(o.until) {
			delete(u.m, k)
		}
	}
	for i := range in {
		if len(u.m) < maxUnsure {
			u.m[questionOf(&in[i])] = unsureOwner{in[i].Owner, now.Add(max(lease, in[i].Lease))}
		}
	}
	u.n.Store(int64(len(u.m)))
}

// take returns the token to ask q with, and forgets it: two askers must never share one.
func (u *unsureOwners) take(q *ClaimRequest) (Owner, bool) {
	if u.n.Load() == 0 {
		return Owner{}, false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	k := questionOf(q)
	o, ok := u.m[k]
	delete(u.m, k)
	u.n.Store(int64(len(u.m)))
	return o.owner, ok && time.Now().Before(o.until)
}
