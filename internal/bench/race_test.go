//go:build race

package bench

// raced: the race detector looks on.
const raced = true
