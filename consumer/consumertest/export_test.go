package consumertest

import (
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
)

// CaseNames are the names of the subtests of TestSource.
func CaseNames() (names []string) {
	for _, tc := range cases() {
		names = append(names, tc.name)
	}
	return names
}

// RunCase runs one case in virtual time, in which waiting for what never comes costs nothing, and
// returns what it complained of.
func RunCase(t *testing.T, name string, fresh func(tb testing.TB) Config) (failed, skipped bool, said string) {
	for _, tc := range cases() {
		if tc.name != name {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			failed, skipped, said = Recorded(t, func(tb testing.TB) {
				e := newEnv(tb, fresh(tb))
				if why := e.conf.inapplicable(name); why != "" {
					tb.Skip(why)
				}
				tc.run(e)
			})
		})
		return failed, skipped, said
	}
	t.Fatalf("there is no case %s", name)
	return
}

// Recorded runs f with a TB of its own.
func Recorded(t *testing.T, f func(tb testing.TB)) (failed, skipped bool, said string) {
	r := &recorder{TB: t}
	over := make(chan struct{})
	go func() {
		defer close(over)
		defer r.cleanUp()
		f(r)
	}()
	<-over
	return r.failed, r.skipped, r.said
}

// recorder takes a case's failure, which here is wanted, instead of the test.
type recorder struct {
	testing.TB
	mu              sync.Mutex
	failed, skipped bool
	said            string
	cleanups        []func()
}

func (r *recorder) note(failed, skipped bool, text string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed, r.skipped = r.failed || failed, r.skipped || skipped
	r.said += text
}

func (r *recorder) Errorf(format string, args ...any) {
	r.note(true, false, fmt.Sprintf(format, args...))
}
func (r *recorder) FailNow()                          { r.note(true, false, ""); runtime.Goexit() }
func (r *recorder) Fatalf(format string, args ...any) { r.Errorf(format, args...); runtime.Goexit() }
func (r *recorder) Skip(args ...any)                  { r.note(false, true, fmt.Sprint(args...)); runtime.Goexit() }
func (r *recorder) Cleanup(f func())                  { r.cleanups = append(r.cleanups, f) }

func (r *recorder) cleanUp() {
	for len(r.cleanups) > 0 {
		last := len(r.cleanups) - 1
		f := r.cleanups[last]
		r.cleanups = r.cleanups[:last]
		f()
	}
}
