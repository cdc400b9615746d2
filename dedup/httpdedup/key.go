package httpdedup

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
)

// keyHeader is the header's name in canonical form.
const keyHeader = "Idempotency-Key"

// maxKey is the longest key, in bytes without quotes: as Stripe's.
const maxKey = 255

var (
	errTwoKeys  = errors.New("there is more than one Idempotency-Key field")
	errKeyForm  = errors.New("the Idempotency-Key is neither printable ASCII without spaces, commas and quotes, nor a string in double quotes")
	errStrict   = errors.New("the Idempotency-Key is not a string in double quotes")
	errKeyEmpty = errors.New("the Idempotency-Key is empty")
	errKeyLong  = errors.New("the Idempotency-Key is longer than 255 bytes")
)

// headerKey returns the key that the header names; "" without an error where there is none.
func headerKey(h http.Header, strict bool) (string, error) {
	values := h[keyHeader]
	switch len(values) {
	case 0:
		return "", nil
	case 1:
		return parseKey(strings.Trim(values[0], " \t"), strict)
	}
	return "", errTwoKeys
}

// parseKey reads the quoted form, a structured-field string without parameters (RFC 9651, 4.2.5), and
// unless strict the raw form. The raw form has no commas and quotes: a proxy that joins two fields with a
// comma must not make a third key of them.
func parseKey(v string, strict bool) (string, error) {
	key, err := v, errKeyForm
	switch {
	case v == "":
		return "", errKeyEmpty
	case v[0] == '"':
		key, err = unquote(v)
	case strict:
		return "", errStrict
	case rawKey(v):
		err = nil
	}
	switch {
	case err != nil:
		return "", err
	case key == "":
		return "", errKeyEmpty
	case len(key) > maxKey:
		return "", errKeyLong
	}
	return key, nil
}

func rawKey(v string) bool {
	for i := range len(v) {
		if c := v[i]; c <= ' ' || c > '~' || c == '"' || c == ',' {
			return false
		}
	}
	return true
}

// unquote returns what v has between its quotes. v begins with one.
func unquote(v string) (string, error) {
	var b strings.Builder
	from := 1 // what is not yet in b
	for i := 1; i < len(v); i++ {
		switch c := v[i]; {
		case c == '"':
			if i != len(v)-1 {
				return "", errKeyForm
			}
			if b.Len() == 0 {
				return v[from:i], nil
			}
			return b.String() + v[from:i], nil
		case c == '\\':
			if i+1 == len(v) || (v[i+1] != '"' && v[i+1] != '\\') {
				return "", errKeyForm
			}
			b.WriteString(v[from:i])
			i++
			b.WriteByte(v[i])
			from = i + 1
		case c < ' ' || c > '~':
			return "", errKeyForm
		}
	}
	return "", errKeyForm // no closing quote
}

// secretID is a hash of parts, length-prefixed so that no two lists of parts share one: it stands in logs,
// errors and stores in place of keys and tokens, which may be secrets.
func secretID(parts ...string) string {
	var buf [384]byte
	b := buf[:0]
	for _, p := range parts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(p)))
		b = append(b, p...)
	}
	sum := sha256.Sum256(b)
	var text [2 * sha256.Size]byte
	hex.Encode(text[:], sum[:])
	return string(text[:])
}
