package outbox

// Texts are the relay's statements.
func (o *Outbox) Texts() map[string]string {
	return map[string]string{"read": o.text.read, "strict": o.text.strict, "mark": o.text.mark, "fail": o.text.fail, "requeue": o.text.requeue, "count": o.text.count}
}
