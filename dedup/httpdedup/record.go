package httpdedup

import (
	"encoding/binary"
	"errors"
	"net/http"
	"slices"
)

// What a store keeps of an answer:
//
//	0  version: 1
//	1  1 the answer, 2 a tombstone: it was given, and not kept
//	2  status, 2 bytes, big-endian; 0 where it is not known (a hijacked connection)
//	   headers: number; each a name, a number of values, and these. Numbers are uvarints, texts have
//	   their length before them
//	   body, the rest
//
// A tombstone ends after the status.
const (
	recordVersion = 1
	keptAnswer    = 1
	tombstone     = 2
)

// answer is a response as it is remembered.
type answer struct {
	status int
	header http.Header
	body   []byte
	kept   bool // false: a tombstone
}

// encode keeps those headers that keep says.
func (a *answer) encode(keep func(name string) bool) []byte {
	if !a.kept {
		return binary.BigEndian.AppendUint16([]byte{recordVersion, tombstone}, uint16(a.status))
	}
	var few [16]string
	names := few[:0]
	size := len(a.body) + 8
	for n, values := range a.header {
		if keep(n) {
			names = append(names, n)
			size += len(n) + 2
			for _, v := range values {
				size += len(v) + 2
			}
		}
	}
	slices.Sort(names)
	b := binary.BigEndian.AppendUint16(append(make([]byte, 0, size), recordVersion, keptAnswer), uint16(a.status))
	b = binary.AppendUvarint(b, uint64(len(names)))
	for _, n := range names {
		b = appendText(b, n)
		b = binary.AppendUvarint(b, uint64(len(a.header[n])))
		for _, v := range a.header[n] {
			b = appendText(b, v)
		}
	}
	return append(b, a.body...)
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

var errRecord = errors.New("httpdedup: the stored answer cannot be read: it is damaged, or of a later version of this package")

// decode reads what encode wrote, and nothing else.
func decode(b []byte) (*answer, error) {
	if len(b) < 4 || b[0] != recordVersion {
		return nil, errRecord
	}
	a := &answer{status: int(binary.BigEndian.Uint16(b[2:])), kept: b[1] == keptAnswer}
	if !a.kept {
		if b[1] != tombstone || len(b) != 4 {
			return nil, errRecord
		}
		return a, nil
	}
	if a.status < 200 || a.status > 999 {
		return nil, errRecord
	}
	in := reader{b: b[4:]}
	n := in.number()
	a.header = make(http.Header, min(n, 16))
	for range n {
		if in.bad {
			break
		}
		name := in.text()
		values := make([]string, in.number())
		for i := range values {
			values[i] = in.text()
		}
		a.header[name] = values
	}
	if in.bad {
		return nil, errRecord
	}
	a.body = in.b
	return a, nil
}

// reader takes a record apart. Once bad, it answers zeros.
type reader struct {
	b   []byte
	bad bool
}

// number is a count of things of at least one byte each, so it is never above what is left.
func (r *reader) number() int {
	n, size := binary.Uvarint(r.b)
	if size <= 0 || n > uint64(len(r.b)-size) {
		r.b, r.bad = nil, true
		return 0
	}
	r.b = r.b[size:]
	return int(n)
}

func (r *reader) text() string {
	n := r.number()
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}
