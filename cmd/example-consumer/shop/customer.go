package shop

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
)

// A browser is recognised by a cookie that it is given with its first page, a program by the user name of
// its basic authentication. A real shop would ask for more; what matters here is that
// tokens and keys belong to somebody.
const cookieName = "customer"

type customerKey struct{}

// recognised tells the handlers behind it who asks.
func recognised(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := ""
		if user, _, ok := r.BasicAuth(); ok && user != "" {
			name = "user " + user
		} else if c, err := r.Cookie(cookieName); err == nil && c.Value != "" {
			name = "cookie " + c.Value
		} else if r.Method == http.MethodGet {
			c := &http.Cookie{Name: cookieName, Value: rand.Text(), Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode}
			http.SetCookie(w, c)
			name = "cookie " + c.Value
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), customerKey{}, name)))
	})
}

// customerOf is who asks; "" is nobody known.
func customerOf(r *http.Request) string {
	name, _ := r.Context().Value(customerKey{}).(string)
	return name
}

// pseudonym is what others may see of a customer, whose cookie is a secret.
func pseudonym(customer string) string {
	sum := sha256.Sum256([]byte("customer " + customer))
	return hex.EncodeToString(sum[:4])
}
