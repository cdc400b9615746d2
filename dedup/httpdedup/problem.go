package httpdedup

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// problem is an answer of the middleware's own, as application/problem+json (RFC 9457).
type problem struct {
	status int
	reason string // for programs, and the fragment of the type
	title  string
	detail string
	retry  int // seconds in Retry-After; 0: waiting does not help
}

const (
	retrySoon  = 1 // another request with the key is being answered
	retryLater = 5 // the store is out of reach
)

var (
	keyMissing = problem{
		status: http.StatusBadRequest, reason: "key-missing", title: "Idempotency-Key is missing",
		detail: "Name this operation by a key, in the header Idempotency-Key where nothing else was agreed: a value that is the same on every try of it and on nothing else.",
	}
	callerUnknown = problem{
		status: http.StatusForbidden, reason: "caller-unknown", title: "Client is not known",
		detail: "This operation is for authenticated clients.",
	}
	bodyTooLarge = problem{
		status: http.StatusRequestEntityTooLarge, reason: "body-too-large", title: "Request body is too large",
		detail: "The body is larger than this operation accepts.",
	}
	bodyIncomplete = problem{
		status: http.StatusBadRequest, reason: "body-incomplete", title: "Request body is incomplete",
		detail: "The body could not be read to its end. Nothing was done.",
	}
	inProgress = problem{
		status: http.StatusConflict, reason: "in-progress", title: "A request with this Idempotency-Key is in progress", retry: retrySoon,
		detail: "Another request with this key has not been answered yet. Try again later with the same key.",
	}
	notKept = problem{
		status: http.StatusConflict, reason: "answer-not-kept", title: "The answer to this Idempotency-Key was not kept",
		detail: "A request with this key was carried out and answered, and its answer could not be kept. It will not be carried out again.",
	}
	otherRequest = problem{
		status: http.StatusUnprocessableEntity, reason: "key-reused", title: "Idempotency-Key is used for another request",
		detail: "A different request was sent with this key before. Send the same request, or use a new key.",
	}
	storeDown = problem{
		status: http.StatusServiceUnavailable, reason: "unavailable", title: "Service is temporarily unavailable", retry: retryLater,
		detail: "Whether this request was made before cannot be told now. Nothing was done. Try again later with the same key.",
	}
	recordUnreadable = problem{
		status: http.StatusInternalServerError, reason: "record-unreadable", title: "Internal server error",
		detail: "What is remembered of this key cannot be read. Nothing was done.",
	}
	misplaced = problem{
		status: http.StatusInternalServerError, reason: "misplaced", title: "Internal server error",
		detail: "The body of this request was read before it could be compared with earlier ones. Nothing was done.",
	}
	effectDone = problem{
		status: http.StatusInternalServerError, reason: "failed-after-effect", title: "Internal server error",
		detail: "The request was carried out, and answering it failed. It will not be carried out again.",
	}
)

// keyInvalid says what is wrong with a key, without the key itself.
func keyInvalid(why error) problem {
	return problem{status: http.StatusBadRequest, reason: "key-invalid", title: "Idempotency-Key is invalid", detail: "Nothing was done: " + why.Error() + "."}
}

// body is the problem as JSON. Without a page to point to, the type says that the status says it all, and
// then the title is the status's own (RFC 9457, 4.2.1).
func (p *problem) body(docs string) []byte {
	kind, title := docs+"#"+p.reason, p.title
	if docs == "" {
		kind, title = "about:blank", http.StatusText(p.status)
	}
	b, err := json.Marshal(struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Detail string `json:"detail"`
		Reason string `json:"reason"`
	}{kind, title, p.status, p.detail, p.reason})
	if err != nil { // strings and a number
		return nil
	}
	return append(b, '\n')
}

const problemType = "application/problem+json"

func (p *problem) send(w http.ResponseWriter, docs string) {
	h := w.Header()
	h.Set("Content-Type", problemType)
	h.Set("Cache-Control", "no-store")
	if p.retry > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retry))
	}
	w.WriteHeader(p.status)
	_, _ = w.Write(p.body(docs)) // an error means that the client has gone
}
