package httpdedup

// Recode reads a stored answer and writes it again.
func Recode(b []byte) (again []byte, ok bool) {
	a, err := decode(b)
	if err != nil {
		return nil, false
	}
	return a.encode(func(string) bool { return true }), true
}
