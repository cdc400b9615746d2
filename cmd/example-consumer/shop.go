package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/idemq/idemq/cmd/example-consumer/shop"
)

// shopName, as the first argument, opens the shop.
const shopName = "shop"

// shopConfig is its command line.
type shopConfig struct {
	config
	addr    string
	formTTL time.Duration
}

// parseShop returns nil and no error where only the usage was asked for.
func parseShop(args []string, env func(string) string, stderr io.Writer) (*shopConfig, error) {
	c := &shopConfig{}
	f := flag.NewFlagSet("example-consumer shop", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&c.addr, "addr", "127.0.0.1:8080", "address of the pages; port 0 takes a free one")
	f.DurationVar(&c.formTTL, "form-ttl", time.Hour, "how long a form can be sent")
	f.StringVar(&c.topic, "topic", "shop-orders", "topic, or queue, of the orders")
	f.StringVar(&c.group, "group", "shop", "consumer group of the ledger; RabbitMQ has none")
	broker := f.String("broker", "", "a real broker: "+strings.Join(kindNames(), ", ")+"; default: embedded")
	store := f.String("store", "", "a real store: "+storeNames()+"; default: embedded")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, nil
		}
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; there are only flags, see shop --help", f.Arg(0))
	}
	return c, c.locate(*broker, *store, env)
}

// openShop runs the shop until ctx ends.
func openShop(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer) (err error) {
	c, err := parseShop(args, env, stderr)
	if err != nil || c == nil {
		return err
	}
	e, err := startEmbedded(c.servers)
	if err != nil {
		return err
	}
	defer e.close() // its folder is a temporary one
	log := slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	c.servers = e.servers
	parts, closeParts, err := c.parts(ctx, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeParts()) }()
	s, err := shop.New(ctx, *parts)
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", c.addr)
	if err != nil {
		return fmt.Errorf("--addr: %w", err)
	}
	fmt.Fprintf(stdout, shopOpens, "http://"+l.Addr().String())
	return s.Run(ctx, l)
}

// parts opens what the shop is built on. The orders are in the servers' database, and
// so are tokens and keys, unless the store is Redis.
func (c *shopConfig) parts(ctx context.Context, log *slog.Logger) (p *shop.Parts, closeAll func() error, err error) {
	var closers []func() error
	closeAll = func() error {
		var errs []error
		for i := range closers {
			errs = append(errs, closers[len(closers)-1-i]())
		}
		return errors.Join(errs...)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, closeAll())
		}
	}()
	b, err := c.servers.broker()
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, func() error { b.close(); return nil })
	db, err := c.servers.openDB()
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, db.Close)
	open := c.servers.openNamed
	if c.servers.Store == "" {
		open = c.servers.openTx
	}
	store, err := open(ctx, "", log)
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, store.close)
	topics := []string{c.topic}
	if c.servers.Kind == kafkaName {
		topics = append(topics, c.topic+".dlt") // its dead letters'; the other brokers' are made by themselves
	}
	for _, topic := range topics {
		if err = b.create(ctx, topic, c.group); err != nil {
			return nil, nil, err
		}
	}
	source, err := b.open(c.topic, c.group, log)
	if err != nil {
		return nil, nil, err
	}
	publisher, err := b.publisher()
	if err != nil {
		return nil, nil, err
	}
	closers = append(closers, publisher.Close)
	return &shop.Parts{
		DB: db, Dialect: c.servers.Dialect, Store: store.Store, Topic: c.topic, Publisher: publisher, Source: source,
		FormTTL: c.formTTL, Logger: log,
	}, closeAll, nil
}

// shopOpens says what there is to try.
const shopOpens = `The shop is open at %[1]s; Ctrl-C closes it.

Order something, then try to have it twice:
  - click the button twice
  - reload the page that thanks you
  - go back and send the form again
  - open the same form in two tabs and send both
Each is one order at %[1]s/ledger.

A program names its payment by a key. Send this as often as you like:
  curl -i -u ann: -H 'Idempotency-Key: my-first-order' -d 'item=assam&quantity=2' %[1]s/payments
`
