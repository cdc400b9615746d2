package rabbitmq

import "time"

// Cut breaks every connection that s has.
func (s *Source) Cut() {
	s.conns.cut(false)
	s.copies.conns.cut(false)
}

// Reconnect makes s try again after pause, doubled up to longest. Before the first Receive.
func (s *Source) Reconnect(pause, longest time.Duration) { s.pause, s.longest = pause, longest }

// Cut breaks every connection that p has.
func (p *Publisher) Cut() { p.producer.conns.cut(false) }
