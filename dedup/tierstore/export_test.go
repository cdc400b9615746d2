package tierstore

// HeldTokens is how many tokens of claims that are not ended s keeps.
func (s *Store) HeldTokens() int {
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	return len(s.held.now) + len(s.held.old)
}
