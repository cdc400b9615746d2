package main

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// commandVar, when it is set, makes the test binary the command itself.
const commandVar = "IDEMQ_EXAMPLE_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(commandVar) != "" || os.Getenv(childVar) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}
