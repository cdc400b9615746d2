// Package rabbitmq consumes and publishes with rabbitmq/amqp091-go.
package rabbitmq
