package httpdedup

// Recode reads a stored answer and writes it again.
func Recode(b []byte) (again []byte, ok bool) {
	a, err := decode(b)
	if err != nil {
		return nil, false
	}
	all := make(map[string]bool)
	for n := range a.header {
		all[n] = true
	}
	return a.encode(all), true
}
