// Package imports holds the test of who may import whom. Its rules are in rules_test.go, each
// with the reason that a failure prints.
package imports
