package deduptest

import "github.com/idemq/idemq/dedup"

// life is what the rules say about one key, and nothing else: no clock, no bytes, no batches. Its
// methods answer what a Store must, and return the life that follows; a refusal returns the same.
// Time is told to it, by lapse and by the zero life, which is what retention leaves.
type life struct {
	state  dedup.State // the record's; zero: nothing is remembered
	owner  dedup.Owner // whose word the state is
	held   bool        // the owner has claimed and not yet ended
	live   bool        // the lease runs; only with held
	alone  bool        // a crash of this owner counts whatever was before
	epoch  uint64
	failed int // attempts that failed
	crash  int
	number int // redrive
	print  dedup.Fingerprint
	why    string
	result string
}

// claim answers q. next is the epoch that a claim gets which acquires.
func (l life) claim(q dedup.ClaimRequest, next uint64) (life, dedup.Verdict) {
	var none dedup.Fingerprint
	if l.state == 0 {
		if q.MustExist {
			return l, dedup.Verdict{State: dedup.Absent}
		}
		return l.acquire(q, next)
	}
	if l.print != none && q.Fingerprint != none && l.print != q.Fingerprint {
		return l, dedup.Verdict{State: dedup.Mismatch}
	}
	if q.Owner == l.owner { // rule 2: a repeated call
		if !l.held {
			return l, l.word()
		}
		l.live = true
		return l, l.hold()
	}
	switch {
	case l.held && l.live: // rules 1 and 7
		return l, l.tell(dedup.InProgress)
	case l.state == dedup.Done, l.state == dedup.Failed && q.Redrive <= l.number: // rules 6 and 13
		return l, l.word()
	}
	return l.acquire(q, next)
}

func (l life) acquire(q dedup.ClaimRequest, next uint64) (life, dedup.Verdict) {
	vanished := l.state == dedup.InProgress
	if vanished && (l.alone || l.crash == 0) { // rule 14
		l.crash++
	}
	if q.Redrive > l.number { // rule 13
		l.number, l.failed, l.crash = q.Redrive, 0, 0
		l.state = dedup.InProgress
	} else if l.state != dedup.Condemned {
		l.state = dedup.InProgress
	}
	var none dedup.Fingerprint
	if q.Fingerprint != none {
		l.print = q.Fingerprint
	}
	l.owner, l.held, l.live, l.alone, l.epoch = q.Owner, true, true, false, next
	return l, l.hold()
}

// hold answers the owner of a claim that stands.
func (l life) hold() dedup.Verdict {
	if l.state == dedup.Condemned {
		return l.tell(dedup.Condemned)
	}
	return l.tell(dedup.Acquired)
}

// word answers with the last word that was given on the key.
func (l life) word() dedup.Verdict {
	if l.state == dedup.Condemned { // and not held: its owner gave it back
		return l.tell(dedup.Released)
	}
	return l.tell(l.state)
}

func (l life) tell(s dedup.State) dedup.Verdict {
	v := dedup.Verdict{State: s, Epoch: l.epoch, Attempt: l.failed + 1, Crashes: l.crash, Redrive: l.number, LastError: l.why}
	if s == dedup.Done {
		v.Result = []byte(l.result)
	}
	return v
}

// gone reports that the record h speaks of is lost: there is none, or one that went back.
func (l life) gone(h dedup.Held) bool { // rule 5
	return l.state == 0 || l.epoch < h.Epoch && l.state != dedup.Done
}

// again is the life that h, which carries all of its claim, says there was.
func again(h dedup.Held) life {
	l := life{
		state: dedup.InProgress, owner: h.Owner, held: true, live: true, epoch: h.Epoch,
		failed: h.Attempt - 1, crash: h.Crashes, number: h.Redrive, print: h.Fingerprint, why: h.LastError,
	}
	if h.Condemned {
		l.state = dedup.Condemned
	}
	return l
}

func (l life) extend(q dedup.ExtendRequest) (life, error) {
	if l.gone(q.Held) {
		l = again(q.Held)
		l.alone = q.Alone
		return l, dedup.ErrRecordLost
	}
	if l.owner != q.Owner || !l.held { // rule 3
		return l, dedup.ErrSuperseded
	}
	l.live, l.alone = true, l.alone || q.Alone
	return l, nil
}

func (l life) finish(q dedup.FinishRequest) (life, error) {
	was, ok := l, error(nil)
	if l.gone(q.Held) {
		l, ok = again(q.Held), dedup.ErrRecordLost
	}
	switch {
	case l.owner != q.Owner: // rule 3
		return was, dedup.ErrSuperseded
	case l.state == q.State: // rule 2
		return l, ok
	case l.state == dedup.Condemned && !l.held:
		if q.State == dedup.Released {
			return l, ok
		}
		return was, dedup.ErrSuperseded
	case !l.held, l.state == dedup.Condemned && (q.State == dedup.Done || q.State == dedup.Retryable):
		return was, dedup.ErrSuperseded
	}
	return l.end(q), ok
}

// end writes the word of the owner.
func (l life) end(q dedup.FinishRequest) life {
	switch q.State {
	case dedup.Condemned:
		l.state, l.why, l.live = dedup.Condemned, q.Reason, true
		return l
	case dedup.Done:
		l.state, l.failed, l.crash, l.why, l.result = dedup.Done, 0, 0, "", string(q.Result)
	case dedup.Retryable:
		l.state, l.failed, l.crash, l.why = dedup.Retryable, l.failed+1, 0, q.Reason
	case dedup.Failed:
		l.state, l.why = dedup.Failed, q.Reason
	case dedup.Released:
		if l.state != dedup.Condemned {
			l.state = dedup.Released
		}
	}
	l.held, l.live = false, false
	return l
}

// lapse is the end of a lease.
func (l life) lapse() life {
	l.live = false
	return l
}
