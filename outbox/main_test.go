package outbox_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/idemq/idemq/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeaksOfProxies()...) }
