// Package shop is a small web shop on the parts of idemq, to be tried in a browser.
//
// A customer orders in two ways: by a form, which carries a one-time token, and by a payment with an
// Idempotency-Key. The order and the message about it commit together (outbox), a relay brings the
// message to the broker, and a consumer books it in the ledger, in one transaction with its verdict.
// Whatever is sent twice on that way, one row is in the ledger; which has no unique key that would see to it.
//
//	browser -> Tokens or Middleware -> orders + outbox -> Relay -> broker -> Consumer -> ledger
package shop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"html/template"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/idemq/idemq/consumer"
	"github.com/idemq/idemq/dedup"
	"github.com/idemq/idemq/dedup/httpdedup"
	"github.com/idemq/idemq/dedup/sqlstore"
	"github.com/idemq/idemq/outbox"
)

// App keeps the shop's records apart from those of others in the same store.
const App = "example-shop"

// Parts are what a shop is built on. They stay the caller's to close.
type Parts struct {
	DB        *sql.DB // of orders, outbox and ledger
	Dialect   sqlstore.Dialect
	Store     dedup.Store // of tokens and payments; it may be a table in DB
	Topic     string      // of orders
	Publisher outbox.Publisher
	Source    consumer.Source // of the same topic
	FormTTL   time.Duration   // how long a form can be sent
	Logger    *slog.Logger
}

// Shop is open while Run runs.
type Shop struct {
	parts    Parts
	tables   tables
	pages    *template.Template
	forms    *httpdedup.Tokens
	payments func(http.Handler) http.Handler
	out      *outbox.Outbox
	relay    *outbox.Relay
	ledger   *consumer.Consumer
}

// What a second click waits for the first, instead of being told that it runs.
const doubleClick = 10 * time.Second

// New makes the tables that are missing.
func New(ctx context.Context, p Parts) (*Shop, error) {
	s := &Shop{parts: p, tables: tables{p.Dialect}}
	var err error
	if s.pages, err = parsePages(); err != nil {
		return nil, err
	}
	if err = s.tables.create(ctx, p.DB); err != nil {
		return nil, fmt.Errorf("shop: its tables: %w", err)
	}
	if err = s.takeOrders(ctx); err != nil {
		return nil, err
	}
	return s, s.keepLedger(ctx)
}

// takeOrders prepares the half that customers see.
func (s *Shop) takeOrders(ctx context.Context) error {
	guard, err := dedup.New(App, s.parts.Store, &dedup.Options{Logger: s.parts.Logger})
	if err != nil {
		return err
	}
	s.forms, err = httpdedup.NewTokens(guard, "checkout", &httpdedup.TokenOptions{TTL: s.parts.FormTTL, Wait: doubleClick})
	if err != nil {
		return err
	}
	s.payments, err = httpdedup.Middleware(guard, "payments", customerOf, &httpdedup.Options{Wait: doubleClick})
	if err != nil {
		return err
	}
	if s.out, err = outbox.New(s.parts.DB, s.parts.Dialect, &outbox.Options{Table: "shop_outbox"}); err != nil {
		return err
	}
	if err = s.out.Migrate(ctx); err != nil {
		return err
	}
	s.relay, err = outbox.NewRelay(s.out, s.parts.Publisher, &outbox.RelayOptions{Logger: s.parts.Logger})
	return err
}

// keepLedger prepares the half behind the broker. Its records are in the ledger's database whatever the
// forms' are in, so that a row and the verdict on its message commit together.
func (s *Shop) keepLedger(ctx context.Context) error {
	store, err := sqlstore.New(s.parts.DB, s.parts.Dialect, nil)
	if err != nil {
		return err
	}
	if err = store.Migrate(ctx); err != nil {
		return err
	}
	guard, err := dedup.New(App, store, &dedup.Options{Logger: s.parts.Logger})
	if err != nil {
		return err
	}
	s.ledger, err = consumer.NewInTx(s.parts.Source, guard, s.book, nil)
	return err
}

// Handler is the shop's pages.
func (s *Shop) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /{$}", http.RedirectHandler("/checkout", http.StatusFound))
	mux.HandleFunc("GET /checkout", s.showForm)
	mux.HandleFunc("POST /orders", s.takeForm)
	mux.Handle("POST /payments", s.payments(http.HandlerFunc(s.takePayment)))
	mux.HandleFunc("GET /ledger", s.showLedger)
	mux.Handle("GET /page/", http.FileServerFS(files))
	mux.HandleFunc("/", s.notFound)
	return http.NewCrossOriginProtection().Handler(recognised(mux))
}

// Run serves l, publishes and books until ctx ends; then it answers the requests that run, and books what
// was taken in hand. What is still on its way is booked when the shop opens again.
func (s *Shop) Run(ctx context.Context, l net.Listener) error {
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second}
	ctx, closeShop := context.WithCancel(ctx)
	defer closeShop()
	var parts sync.WaitGroup
	errs := make([]error, 3)
	run := func(i int, name string, f func() error) {
		parts.Go(func() {
			defer closeShop() // none is of use without the others
			if err := f(); err != nil {
				errs[i] = fmt.Errorf("shop: %s: %w", name, err)
			}
		})
	}
	run(0, "pages", func() error { return serve(ctx, server, l) })
	run(1, "relay", func() error { return s.relay.Run(ctx) })
	run(2, "ledger", func() error { return s.ledger.Run(ctx) })
	parts.Wait()
	return errors.Join(errs...)
}

// What running requests get once the shop closes.
const closingTime = 15 * time.Second

// serve returns when the last running request was answered.
func serve(ctx context.Context, server *http.Server, l net.Listener) error {
	closed := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closingTime)
		defer cancel()
		closed <- server.Shutdown(ctx)
	})
	err := server.Serve(l)
	if !errors.Is(err, http.ErrServerClosed) {
		if stop() {
			return err
		}
		return errors.Join(err, <-closed)
	}
	return <-closed
}
