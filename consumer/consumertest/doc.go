// Package consumertest has an in-memory broker for handler tests and the conformance suite for
// consumer.Source.
package consumertest
