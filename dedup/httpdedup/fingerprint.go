package httpdedup

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/idemq/idemq/dedup"
)

// fingerprint is the default: the request byte by byte, without what a client's library or a proxy may add.
func fingerprint(r *http.Request, body []byte) dedup.Fingerprint {
	return dedup.FingerprintOf(target(r), body)
}

// target is what a request is for: method, path, query, and the content type without parameters, which clients
// change between versions. The path as it was sent counts, too: http.StripPrefix leaves /42 of /charges/42 and of /refunds/42.
func target(r *http.Request) []byte {
	kind, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	b := make([]byte, 0, 256)
	for _, part := range [...]string{r.Method, sentPath(r), r.URL.EscapedPath(), r.URL.RawQuery, strings.ToLower(strings.TrimSpace(kind))} {
		b = appendText(b, part)
	}
	return b
}

// sentPath is the path of the request's first line, without the host that it names where it went through a proxy.
func sentPath(r *http.Request) string {
	sent, _, _ := strings.Cut(r.RequestURI, "?")
	if _, rest, absolute := strings.Cut(sent, "://"); absolute && sent[0] != '/' {
		_, path, _ := strings.Cut(rest, "/")
		return "/" + path
	}
	return sent
}

// JSONFingerprint is for [Options].Fingerprint, where a client writes its JSON anew for each try: the order of
// members and the white space between them do not count. Numbers and strings are compared as they are
// written, but for escapes. A body that is no JSON, or has two members whose names differ at most in
// case, is compared byte by byte, since which of them counts is the handler's affair.
func JSONFingerprint(r *http.Request, body []byte) dedup.Fingerprint {
	plain, err := canonical(body)
	if err != nil {
		return fingerprint(r, body)
	}
	return dedup.FingerprintOf(target(r), []byte("canonical JSON"), plain)
}

var errNotCanonical = errors.New("httpdedup: this JSON has no canonical form")

// maxDepth bounds the recursion: a body of brackets only would take much memory otherwise.
const maxDepth = 200

// canonical writes one JSON value without white space, its members sorted by name.
func canonical(body []byte) ([]byte, error) {
	if !json.Valid(body) {
		return nil, errNotCanonical
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	b, err := appendValue(nil, d, 0)
	if err == nil && bytes.ContainsRune(b, utf8.RuneError) { // what was no text, and differed
		err = errNotCanonical
	}
	return b, err
}

func appendValue(b []byte, d *json.Decoder, depth int) ([]byte, error) {
	t, err := d.Token()
	if err != nil || depth > maxDepth {
		return nil, errNotCanonical
	}
	switch t {
	case json.Delim('{'):
		return appendObject(b, d, depth)
	case json.Delim('['):
		b = append(b, '[')
		for d.More() {
			if b, err = appendValue(b, d, depth+1); err != nil {
				return nil, err
			}
			b = append(b, ',')
		}
		b = append(b, ']')
		_, err = d.Token()
		return b, err
	}
	text, err := json.Marshal(t)
	return append(b, text...), err
}

func appendObject(b []byte, d *json.Decoder, depth int) ([]byte, error) {
	type member struct{ name, text string }
	var members []member
	folded := make(map[string]bool)
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		name, _ := t.(string)
		text, err := appendValue(nil, d, depth+1)
		if err != nil {
			return nil, err
		}
		fold := strings.ToLower(strings.ToUpper(name))
		if folded[fold] {
			return nil, errNotCanonical
		}
		folded[fold] = true
		members = append(members, member{name, string(text)})
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.name, b.name) })
	b = append(b, '{')
	for _, m := range members {
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		b = append(b, name...)
		b = append(append(append(b, ':'), m.text...), ',')
	}
	_, err := d.Token()
	return append(b, '}'), err
}
