// Package httpdedup makes HTTP requests idempotent: the Idempotency-Key header and one-time tokens.
//
//	idempotent, err := httpdedup.Middleware(guard, "payments", user, nil)
//	mux.Handle("POST /payments", authenticated(idempotent(http.HandlerFunc(pay))))
//
// A client that did not get its answer sends the request again with the same key, and is given the
// answer of the first; the handler does not run. It works on every dedup.Store, and in front of every
// handler of net/http, and so under chi, echo and gin through their adapters. docs/http.md
// shows it with curl.
//
// # Mapping of terms
//
//   - Scope: "http/" and the scope given to [Middleware]; "token/" and that of [NewTokens].
//   - ID: a hash of the caller and the key, or of the token. Neither is in a log, an error, an event or a store.
//     [WorkOf] makes it, for operators.
//   - Key: the Idempotency-Key field, 1 to 255 bytes of printable ASCII, as a quoted string or, without spaces,
//     commas and quotes, raw; or whatever Options.Key finds. Two callers never share a key, nor do two scopes.
//   - Fingerprint: method, path, query, content type without parameters, and body, byte by byte; [JSONFingerprint]
//     for clients that write their JSON anew. For a token it is the subject.
//   - Done: the answer, or a tombstone where it could not be kept. Retryable: a status or a panic that says "not now".
//   - Claim: dedup.ClaimFrom(r.Context()). Its Crashes tells a handler that an owner has vanished before it, so
//     that an effect outside may have happened; its Epoch is the fencing token.
//
// # What a client is answered
//
//	a new key                            what the handler answers
//	done before                          the same status, body and, of its headers, those below, with Idempotent-Replayed: true
//	no key; one that is malformed, twice 400  key-missing, key-invalid
//	body cut off                         400  body-incomplete
//	no caller                            403  caller-unknown
//	in progress                          409  in-progress, with Retry-After; or the answer, within Options.Wait
//	done, and the answer was not kept    409  answer-not-kept
//	body above Options.MaxBody           413  body-too-large
//	another request under the key        422  key-reused, also while the first is in progress and after it failed
//	the store is down                    503  unavailable, with Retry-After: nothing ran
//	the record cannot be read            500  record-unreadable: nothing ran
//	something outside has read the body  500  misplaced: nothing ran
//	a panic after EffectDone, repeated   500  failed-after-effect
//
// Each problem is application/problem+json (RFC 9457) with its word as the member "reason" and as the
// fragment of its type. The draft makes you publish for your clients what of this they need: the form of keys, what
// counts as the same request, how long answers are kept (Options.Retention) and which statuses are.
//
// Kept are Content-Type, -Language, -Encoding, -Disposition and -Location, Location, ETag, Last-Modified,
// Link, Vary, X-Content-Type-Options, Content-Security-Policy and Options.Headers, as they were when the status was written, and where the handler wrote them: what was set
// outside of the middleware is set there again. Cookies never are, nor trailers. A replay says Cache-Control: no-store.
//
// # Deviations from draft-ietf-httpapi-idempotency-key-header-07
//
// The draft has expired and is no RFC. This package follows it, except that
//
//   - the raw form of the key is accepted, unless Options.Strict; parameters after the quoted form are refused;
//   - 5xx, 408, 425, 429 and panics are not remembered, so that the next try runs (Options.Retryable, [EffectDone]);
//   - another request under a key is 422 even while the first is in progress: waiting can never help;
//   - an answer that was not kept is 409, and so final; the draft does not know it;
//   - replays are marked, and 403, 413 and 503 are as above.
//
// # Delivery guarantee
//
// That of the Guard and its store: a request is carried out once, but for the windows named in package dedup. Its
// answer is stored before it is sent, so whoever has an answer gets the same one again. The handler's effect and that record
// are two writes: a process that dies between them leaves a key in progress, and when its lease is over the next
// try runs. Pass the key on to whom you call, or look at Claim.Crashes.
//
// The handler may say when its effect has happened: after [EffectDone] its answer is remembered whatever it is, and
// so is a panic, as a 500.
//
// An answer that is flushed, hijacked or larger than Options.MaxResponse goes straight to the client. It cannot be
// given again, so it leaves a tombstone, and the request is never carried out again; unless its status was one
// of those that are not remembered. Middleware outside may compress; what flushes inside makes a stream.
//
// With dedup.Options.FailOpen requests run unprotected while the store is down, logged and counted. Tokens never do.
//
// # What happens if it dies here
//
//   - Process killed in the handler: 409 until the lease ends (30 s by default, not the retention), then one try runs.
//   - Killed after the answer was stored: the next try is given it.
//   - Client gone: r.Context ends, as ever; what the handler answers is remembered all the same.
//   - Store down during the handler: its verdict is tried for 3 s (one call that hangs may take the Guard's 5 s), then the client gets its
//     answer, and the key is in progress until the lease ends; an error is logged and counted as "unsettled".
//   - Lease lost while the handler runs (the process stood still, the store was away): r.Context ends with
//     cause dedup.ErrLeaseLost. If nobody followed, the answer is remembered. If somebody did, the client is given
//     that one's answer, or 409 while there is none.
//   - Killed in a Redeem: the token is good again when the lease is over.
//
// # Limits
//
// It belongs behind authentication, which decides anew for each try, and in front of whatever reads
// the body: a body that something outside has read is an error of the program (500), as far as that can be seen.
// http.TimeoutHandler, and whatever else answers while its handler goes on, belongs outside: inside, its answer ends the
// claim, and the next try runs beside the one that goes on.
//
// Without a consumer in the process nobody calls [dedup.Guard.Ping], which says at start whether the store can be trusted, and,
// on sqlstore and tierstore, [dedup.Guard.Sweep], which deletes what has expired, until its context ends: do so in main.
//
// Request bodies up to Options.MaxBody are held in memory, and so are answers up to Options.MaxResponse. A store
// may have a limit of its own (sqlstore.Options.MaxResult): what it refuses leaves a tombstone.
//
// A client may use any number of keys; each takes a record for the retention, and nothing after it. A million of them are
// about 200 MB of Redis and their answers (see redisstore): limit the rate of requests, as for any other route.
// [TokenOptions].MaxIssued does so for tokens.
//
// HTTP/2 works but for Hijack and server push. io.ReaderFrom is not offered: an answer is copied once.
//
// A new request takes two round trips of the store, a replay one. An application counts them, and how requests ended, by
// dedup.Options.Observe.
package httpdedup
