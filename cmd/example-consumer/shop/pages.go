package shop

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"net/http"
)

//go:embed page/*.html
var templates embed.FS

// files are sent to browsers as they are.
//
//go:embed page/shop.css page/pay.js
var files embed.FS

func parsePages() (*template.Template, error) {
	return template.New("").Funcs(template.FuncMap{
		"euros": func(cents int64) string { return fmt.Sprintf("€ %d.%02d", cents/100, cents%100) },
	}).ParseFS(templates, "page/*.html")
}

// show renders a page as a whole before it sends anything of it.
func (s *Shop) show(w http.ResponseWriter, status int, name string, data any) {
	var b bytes.Buffer
	if err := s.pages.ExecuteTemplate(&b, name+".html", data); err != nil {
		s.parts.Logger.Error("shop: a page cannot be shown", "page", name, "err", err)
		http.Error(w, "this page cannot be shown", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'self'")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // an error means that the client has gone
}

// trouble is an error page. Next is where it leads to.
type trouble struct {
	Status             int
	Name               string // for programs that look at the page
	Title, Text        string
	NextText, NextPath string
}

var (
	foreign = trouble{
		http.StatusForbidden, "foreign", "This form is not yours",
		"It was made for another visitor, so we did not take it. It still works for whom it was made.",
		"Get a form of your own", "/checkout",
	}
	expired = trouble{
		http.StatusForbidden, "expired", "This form is too old",
		"A form can be sent for a while only, and this one was made too long ago, or not by us. Nothing was ordered.",
		"Get a new form", "/checkout",
	}
	underWay = trouble{
		http.StatusConflict, "under-way", "Your order is being placed",
		"You sent this form twice, and the first one is still being worked on. It will be one order.",
		"Look at the ledger", "/ledger",
	}
	unclear = trouble{
		http.StatusBadRequest, "unclear", "We did not understand this order",
		"Nothing was ordered.", "Try again", "/checkout",
	}
	tooMany = trouble{
		http.StatusTooManyRequests, "too-many", "Too many visitors",
		"We cannot hand out more forms right now. Please come back later.", "Look at the ledger", "/ledger",
	}
	outOfReach = trouble{
		http.StatusServiceUnavailable, "out-of-reach", "Something of ours cannot be reached",
		"If you have just sent a form, send it again, by your browser's back button: it will be one order.",
		"Look at the ledger", "/ledger",
	}
	nowhere = trouble{
		http.StatusNotFound, "nowhere", "There is nothing here", "", "To the shop", "/checkout",
	}
)

func (s *Shop) notFound(w http.ResponseWriter, r *http.Request) {
	s.fail(w, r, nowhere, errors.New("no such page"))
}

// fail shows an error page.
func (s *Shop) fail(w http.ResponseWriter, r *http.Request, t trouble, err error) {
	if t.Status >= 500 && r.Context().Err() == nil {
		s.parts.Logger.Error("shop: "+t.Title, "path", r.URL.Path, "err", err)
	}
	if t.Name == unclear.Name {
		t.Text += " " + err.Error() + "."
	}
	w.Header().Set("Cache-Control", "no-store")
	s.show(w, t.Status, "trouble", t)
}
