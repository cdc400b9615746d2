// Package outbox publishes messages that commit with your own rows.
package outbox
