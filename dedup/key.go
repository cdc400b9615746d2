package dedup

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"sync"
)

// Key is what a Store sees of (application, scope, ID): a SHA-256 over length-prefixed
// parts, so that an ID may hold any bytes and no two triples share a key.
type Key [sha256.Size]byte

// Owner is the random token of one claim.
type Owner [16]byte

// Fingerprint is a hash of the content that must not differ under one ID.
type Fingerprint [16]byte

// FingerprintOf hashes parts, length-prefixed. It is never the zero Fingerprint.
func FingerprintOf(parts ...[]byte) Fingerprint {
	h := hashers.Get().(hash.Hash)
	defer hashers.Put(h)
	h.Reset()
	var buf [sha256.Size]byte // the size of a part, and in the end the sum
	for _, p := range parts {
		h.Write(binary.BigEndian.AppendUint64(buf[:0], uint64(len(p))))
		h.Write(p)
	}
	return Fingerprint(h.Sum(buf[:0])[:len(Fingerprint{})])
}

var hashers = sync.Pool{New: func() any { return sha256.New() }}

// keyOf names one piece of work to a store.
func keyOf(app, scope, id string) Key {
	var buf [256]byte
	b := buf[:0]
	for _, p := range [...]string{app, scope, id} {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	return sha256.Sum256(b)
}

func newOwner() (o Owner) {
	rand.Read(o[:]) // never fails: crypto/rand aborts the process instead
	return o
}
