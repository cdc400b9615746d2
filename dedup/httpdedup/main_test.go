package httpdedup_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain runs a shop in place of the tests where a test has started this binary as one.
func TestMain(m *testing.M) {
	if os.Getenv(shopRedis) != "" {
		os.Exit(runShop())
	}
	goleak.VerifyTestMain(m)
}
