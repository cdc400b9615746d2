//go:build !race

package httpdedup_test

const raceEnabled = false
