package shop_test

import (
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// client is a program that shops, under a name of its own.
type client struct {
	*site
	name string
	http *http.Client
}

func (s *site) client(name string) *client {
	c := &client{s, name, &http.Client{Transport: &http.Transport{}}}
	s.Cleanup(c.http.CloseIdleConnections)
	return c
}

// answer is a page, or what a payment is answered.
type answer struct {
	status int
	header http.Header
	body   string
}

// trouble is the name of the error page; "" where it is none.
func (a answer) trouble() string { return part(a.body, `id="trouble" data-name="([^"]*)"`) }

// order is the number of the order on it.
func (a answer) order() string { return part(a.body, `id="order" data-id="([^"]*)"`) }

func (c *client) send(method, path string, form url.Values, edits ...func(r *http.Request)) answer {
	c.Helper()
	a, err := c.try(method, c.url+path, form, edits...)
	require.NoError(c, err)
	return a
}

func (c *client) try(method, address string, form url.Values, edits ...func(r *http.Request)) (a answer, err error) {
	r, err := http.NewRequestWithContext(c.Context(), method, address, strings.NewReader(form.Encode()))
	if err != nil {
		return a, err
	}
	r.SetBasicAuth(c.name, "")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for _, f := range edits {
		f(r)
	}
	res, err := c.http.Do(r)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return answer{res.StatusCode, res.Header, string(b)}, err
}

// token is that of a new form.
func (c *client) token() string {
	c.Helper()
	a := c.send(http.MethodGet, "/checkout", nil)
	require.Equal(c, 200, a.status, a.body)
	token := part(a.body, `name="token" value="([^"]*)"`)
	require.NotEmpty(c, token)
	return token
}

// espresso is what a form with this token asks for.
func espresso(token string) url.Values {
	return url.Values{"token": {token}, "item": {"espresso"}, "quantity": {"2"}}
}

func (c *client) order(form url.Values) answer {
	c.Helper()
	return c.send(http.MethodPost, "/orders", form)
}

func (c *client) pay(key string) answer {
	c.Helper()
	return c.send(http.MethodPost, "/payments", espresso(""), func(r *http.Request) { r.Header.Set("Idempotency-Key", key) })
}

func part(text, pattern string) string {
	m := regexp.MustCompile(pattern).FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	return m[1]
}

// requireBooked waits until the ledger has as many rows as there are orders, and requires n.
func (s *site) requireBooked(n int) {
	s.Helper()
	require.Eventually(s, func() bool { return s.count("shop_ledger") >= s.count("shop_orders") }, eventually, pollPause)
	require.Equal(s, n, s.count("shop_orders"))
	require.Equal(s, n, s.count("shop_ledger"))
}

// requireTrouble requires an error page.
func requireTrouble(t *testing.T, status int, name string, a answer) {
	t.Helper()
	require.Equal(t, name, a.trouble(), a.body)
	require.Equal(t, status, a.status)
	require.Equal(t, "no-store", a.header.Get("Cache-Control"))
}
