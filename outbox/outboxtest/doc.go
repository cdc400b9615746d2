// Package outboxtest is the conformance suite for publishers and databases of package outbox.
//
//	func TestPublisher(t *testing.T) { outboxtest.TestPublisher(t, config) }
//	func TestDB(t *testing.T)        { outboxtest.TestDB(t, outbox.PostgreSQL, open) }
//
// Each case is named for a rule of the port, or of the package, and fails where it is not kept.
package outboxtest
