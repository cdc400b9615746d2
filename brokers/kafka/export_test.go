package kafka

// Cut breaks every connection that s has.
func (s *Source) Cut() {
	s.conns.cut(false)
	s.others.cut(false)
}
