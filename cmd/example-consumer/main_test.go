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
	// RocketMQ's client library starts this one when it is imported, for good.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/patrickmn/go-cache.(*janitor).Run"))
}
