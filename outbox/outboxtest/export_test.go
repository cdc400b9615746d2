package outboxtest

import (
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
)

// PublisherCaseNames are the names of the subtests of TestPublisher.
func PublisherCaseNames() (names []string) {
	for _, c := range publisherCases {
		names = append(names, c.name)
	}
	return names
}

// RunPublisherCase runs one case in virtual time, in which waiting costs nothing, and returns what it complained of.
func RunPublisherCase(t *testing.T, name string, config func(tb testing.TB) PublisherConfig) (failed bool, said string) {
	for _, c := range publisherCases {
		if c.name != name {
			continue
		}
		synctest.Test(t, func(t *testing.T) {
			r := &recorder{TB: t}
			over := make(chan struct{})
			go func() {
				defer close(over)
				defer r.cleanUp()
				c.run(&publishing{TB: r, PublisherConfig: config(r)})
			}()
			<-over
			failed, said = r.failed, r.said
		})
		return failed, said
	}
	t.Fatalf("there is no case %s", name)
	return
}

// recorder takes a case's failure, which here is wanted, instead of the test.
type recorder struct {
	testing.TB
	failed   bool
	said     string
	cleanups []func()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.failed = true
	r.said += fmt.Sprintf(format, args...)
}
func (r *recorder) FailNow()         { r.failed = true; runtime.Goexit() }
func (r *recorder) Skip(args ...any) { r.Errorf("skipped: %s", fmt.Sprint(args...)); runtime.Goexit() }
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) cleanUp() {
	for i := len(r.cleanups) - 1; i >= 0; i-- {
		r.cleanups[i]()
	}
}
