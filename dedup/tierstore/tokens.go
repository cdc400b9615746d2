package tierstore

import (
	"sync"
	"time"

	"github.com/idemq/idemq/dedup"
)

// heldTokens are the tokens of claims that were acquired here and are not ended yet. One whose owner
// never ends it goes after one to two generations; that costs the front a copy.
type heldTokens struct {
	mu       sync.Mutex
	now, old map[claimID]Token
	turned   time.Time // when the generation began
}

// claimID tells two claims of one key apart: a token must never serve another life of the key, not even one that a late
// repetition of the same owner's claim began.
type claimID struct {
	key   dedup.Key
	owner dedup.Owner
	epoch uint64
}

// generation is longer than nearly all work takes, and short enough for what is left behind.
const generation = 10 * time.Minute

func (h *heldTokens) put(in []dedup.ClaimRequest, out []dedup.Verdict, tokens []Token, which []int) {
	if len(which) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if now := time.Now(); h.now == nil || now.Sub(h.turned) > generation {
		h.old, h.now, h.turned = h.now, make(map[claimID]Token), now
	}
	for _, i := range which {
		id := claimID{in[i].Key, in[i].Owner, out[i].Epoch}
		delete(h.old, id) // of the same claim, asked for again
		h.now[id] = tokens[i]
	}
}

// take returns the tokens of these claims and forgets them; zero where there is none.
func (h *heldTokens) take(in []dedup.FinishRequest, which []int) []Token {
	tokens := make([]Token, len(which))
	h.mu.Lock()
	defer h.mu.Unlock()
	for at, i := range which {
		id := claimID{in[i].Key, in[i].Owner, in[i].Epoch}
		for _, m := range [...]map[claimID]Token{h.now, h.old} {
			if t, ok := m[id]; ok {
				tokens[at] = t
				delete(m, id)
				break
			}
		}
	}
	return tokens
}
