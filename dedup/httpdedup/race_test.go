//go:build race

package httpdedup_test

const raceEnabled = true
