// Package deduptest is the conformance suite for every dedup.Store.
package deduptest
