package redisstore

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/idemq/idemq/dedup"
)

// maxSpan keeps every deadline, in microseconds, exact in a Lua number.
const maxSpan = 100 * 365 * 24 * time.Hour

func checkClaim(q *dedup.ClaimRequest) error {
	switch {
	case q.Lease < 0 || q.Lease > maxSpan:
		return fmt.Errorf("redisstore: lease %v is not between 0 and 100 years", q.Lease)
	case q.Retention < 0 || q.Retention > maxSpan:
		return fmt.Errorf("redisstore: retention %v is not between 0 and 100 years", q.Retention)
	case q.Redrive < 0 || q.Redrive > math.MaxUint32:
		return fmt.Errorf("redisstore: redrive number %d does not fit 32 bits", q.Redrive)
	}
	return nil
}

func checkHeld(h *dedup.Held) error {
	switch {
	case h.Epoch > maxEpoch:
		return fmt.Errorf("redisstore: epoch %d does not fit 53 bits", h.Epoch)
	case h.Attempt < 0 || h.Attempt > math.MaxUint32 || h.Crashes < 0 || h.Crashes > math.MaxUint32:
		return fmt.Errorf("redisstore: attempt %d or crashes %d does not fit 32 bits", h.Attempt, h.Crashes)
	}
	return checkClaim(&h.ClaimRequest)
}

func checkFinish(q *dedup.FinishRequest) error {
	switch q.State {
	case dedup.Done, dedup.Retryable, dedup.Failed, dedup.Released, dedup.Condemned:
		return checkHeld(&q.Held)
	}
	return fmt.Errorf("redisstore: a claim cannot end as %v", q.State)
}

// micros and millis round up: a lease or an expiry is never shorter than asked for, and
// an expiry never 0, which Redis refuses.
func micros(d time.Duration) string {
	return strconv.FormatInt(int64((d+time.Microsecond-1)/time.Microsecond), 10)
}

func millis(d time.Duration) string {
	return strconv.FormatInt(int64(max(1, (d+time.Millisecond-1)/time.Millisecond)), 10)
}

// heldFor is the expiry of a record that somebody owns: never before its lease ends.
func heldFor(q *dedup.ClaimRequest) string { return millis(max(q.Lease, q.Retention)) }

func flag(b bool) string {
	if b {
		return "1"
	}
	return "0"
}

func printFlag(f *dedup.Fingerprint) byte {
	if *f == (dedup.Fingerprint{}) {
		return 0
	}
	return hasPrint
}

// runs calls each for every stretch of neighbours that are alike. Batches are nearly always one
// run, so what its items share is sent and worked out once.
func runs(items []int, alike func(a, b int) bool, each func(run []int)) {
	for len(items) > 0 {
		n := 1
		for n < len(items) && alike(items[0], items[n]) {
			n++
		}
		each(items[:n])
		items = items[n:]
	}
}

func alikeClaims(a, b *dedup.ClaimRequest) bool {
	return a.Lease == b.Lease && a.Retention == b.Retention && a.Redrive == b.Redrive && a.MustExist == b.MustExist &&
		a.Holder == b.Holder && printFlag(&a.Fingerprint) == printFlag(&b.Fingerprint)
}

func alikeHeld(a, b *dedup.Held) bool {
	return a.Attempt == b.Attempt && a.Crashes == b.Crashes && a.Condemned == b.Condemned && a.LastError == b.LastError &&
		alikeClaims(&a.ClaimRequest, &b.ClaimRequest)
}

func packClaims(p *packer, in []dedup.ClaimRequest, items []int) {
	runs(items, func(a, b int) bool { return alikeClaims(&in[a], &in[b]) }, func(run []int) {
		q := &in[run[0]]
		rest, flags := tail(0, 0, q.Redrive, q.Holder, "")
		p.text(strconv.Itoa(len(run)), micros(q.Lease), heldFor(q), strconv.Itoa(q.Redrive), flag(q.MustExist), q.Holder[:min(len(q.Holder), maxText)])
		p.bytes(head(dedup.InProgress, flags|hasLease|printFlag(&q.Fingerprint)))
		p.bytes(rest)
		for _, i := range run {
			p.buf = append(p.buf, in[i].Owner[:]...)
			p.print(&in[i].Fingerprint)
			p.end()
		}
	})
}

// claimed appends head and tail of the record as the claim in h left it.
func (p *packer) claimed(h *dedup.Held) {
	state := dedup.InProgress
	if h.Condemned {
		state = dedup.Condemned
	}
	rest, flags := tail(failures(h), h.Crashes, h.Redrive, h.Holder, h.LastError)
	p.bytes(head(state, flags|hasLease|printFlag(&h.Fingerprint)))
	p.bytes(rest)
}

// failures is how often the handler had failed when h was claimed.
func failures(h *dedup.Held) int { return max(h.Attempt-1, 0) }

// who appends what identifies h in its record.
func (p *packer) who(h *dedup.Held) {
	p.buf = append7(p.buf, h.Epoch)
	p.buf = append(p.buf, h.Owner[:]...)
	p.print(&h.Fingerprint)
	p.end()
}

func (p *packer) print(f *dedup.Fingerprint) {
	if printFlag(f) != 0 {
		p.buf = append(p.buf, f[:]...)
	}
}

func packExtends(p *packer, in []dedup.ExtendRequest, items []int) {
	alike := func(a, b int) bool { return in[a].Alone == in[b].Alone && alikeHeld(&in[a].Held, &in[b].Held) }
	runs(items, alike, func(run []int) {
		q := &in[run[0]]
		p.text(strconv.Itoa(len(run)), micros(q.Lease), heldFor(&q.ClaimRequest), flag(q.Alone))
		p.claimed(&q.Held)
		for _, i := range run {
			p.who(&in[i].Held)
		}
	})
}

func packFinishes(p *packer, in []dedup.FinishRequest, items []int) {
	alike := func(a, b int) bool {
		return in[a].State == in[b].State && hasPayload(&in[a]) == hasPayload(&in[b]) && alikeHeld(&in[a].Held, &in[b].Held)
	}
	runs(items, alike, func(run []int) {
		q := &in[run[0]]
		p.text(strconv.Itoa(len(run)), strconv.Itoa(int(q.State)), micros(q.Lease), heldFor(&q.ClaimRequest), millis(q.Retention), flag(hasPayload(q)))
		p.claimed(&q.Held)
		p.finished(q)
		for _, i := range run {
			p.who(&in[i].Held)
			if !hasPayload(q) {
				continue
			}
			if q.State == dedup.Done {
				p.buf = append(p.buf, in[i].Result...)
			} else {
				p.buf = appendText(p.buf, in[i].Reason)
			}
			p.end()
		}
	})
}

// hasPayload: the item brings a result or a reason.
func hasPayload(q *dedup.FinishRequest) bool {
	return q.State == dedup.Done && len(q.Result) > 0 || hasReason(q)
}

func hasReason(q *dedup.FinishRequest) bool {
	return q.Reason != "" && (q.State == dedup.Retryable || q.State == dedup.Failed || q.State == dedup.Condemned)
}

// finished appends head and tail of the record that q makes of the one its claim left, so that
// the script has nothing to take apart; both empty where the script must look closer.
func (p *packer) finished(q *dedup.FinishRequest) {
	if q.Condemned || q.State == dedup.Condemned {
		p.text("", "")
		return
	}
	attempts, crashes, lastError := failures(&q.Held), q.Crashes, q.LastError
	switch q.State {
	case dedup.Done:
		attempts, crashes, lastError = 0, 0, ""
	case dedup.Retryable:
		attempts, crashes, lastError = attempts+1, 0, ""
	case dedup.Failed:
		lastError = ""
	}
	rest, flags := tail(attempts, crashes, q.Redrive, "", lastError)
	if hasReason(q) {
		flags |= hasError // the payload, which follows
	}
	p.bytes(head(q.State, flags|printFlag(&q.Fingerprint)))
	p.bytes(rest)
}
