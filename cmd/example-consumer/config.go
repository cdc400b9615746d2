package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"
)

// config is the command line.
type config struct {
	servers servers // empty: to be embedded
	service bool

	seed    uint64
	orders  int
	json    bool
	verbose bool
	outbox  bool

	topic, group, listen string
	concurrency, produce int
	work, drain          time.Duration
}

const (
	minOrders = 20
)

// parse returns nil and no error where only the usage was asked for.
func parse(args []string, env func(string) string, stderr io.Writer) (*config, error) {
	c := &config{}
	f := flag.NewFlagSet("example-consumer", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.Uint64Var(&c.seed, "seed", 1, "schedule of duplicates, failures and kills")
	f.IntVar(&c.orders, "orders", 200, "orders in the demonstration")
	f.BoolVar(&c.json, "json", false, "print the table as JSON, alone on stdout")
	f.BoolVar(&c.verbose, "verbose", false, "show what the children log")
	f.BoolVar(&c.outbox, "outbox", false, "write the orders with the outbox, and kill its relays, too")
	broker := f.String("broker", "", "a real broker: "+strings.Join(kindNames(), ", ")+"; default: embedded")
	store := f.String("store", "", "a real store: "+storeNames()+"; default: embedded")
	serve := f.Bool("serve", false, "with --broker and --store: be a service there instead of running the demonstration")
	f.StringVar(&c.topic, "topic", "orders", "topic, or queue, of the service and of --produce")
	f.StringVar(&c.group, "group", "example-consumer", "consumer group of the service; RabbitMQ has none")
	f.StringVar(&c.listen, "listen", "localhost:8080", "address of /metrics, /healthz and /readyz")
	f.IntVar(&c.concurrency, "concurrency", 16, "handlers of the service at once")
	f.IntVar(&c.produce, "produce", 0, "put that many sample orders into the topic and exit")
	f.DurationVar(&c.work, "work", 0, "how long the service's handler takes")
	f.DurationVar(&c.drain, "drain", 25*time.Second, "what running handlers get after SIGTERM")
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, nil
		}
		return nil, err
	}
	if f.NArg() > 0 {
		return nil, fmt.Errorf("unexpected argument %q; there are only flags, see --help", f.Arg(0))
	}
	if err := c.locate(*broker, *store, env); err != nil {
		return nil, err
	}
	c.service = *serve || c.produce > 0
	return c, c.check()
}

// locate finds the addresses of the servers that were asked for.
func (c *config) locate(broker, store string, env func(string) string) error {
	if broker == "" && store == "" {
		return nil
	}
	if broker == "" {
		return fmt.Errorf("--store %s needs a --broker beside it: %s", store, strings.Join(kindNames(), ", "))
	}
	kind, err := kindOf(broker)
	if err != nil {
		return err
	}
	if store == "" {
		return fmt.Errorf("--broker %s needs a --store beside it: %s", broker, storeNames())
	}
	brokers := env(kind.variable)
	if brokers == "" {
		return fmt.Errorf("--broker %s: %s is not set; set it to %s", broker, kind.variable, kind.syntax)
	}
	c.servers = servers{Kind: broker, Brokers: strings.Split(brokers, ",")}
	return c.servers.locateStore(store, env)
}

func (c *config) check() error {
	switch {
	case c.orders < minOrders:
		return fmt.Errorf("--orders %d is below %d, too few for a failure and a kill of each kind", c.orders, minOrders)
	case c.produce < 0:
		return fmt.Errorf("--produce %d is negative", c.produce)
	case c.service && c.servers.Kind == "":
		return errors.New("--serve and --produce need --broker and --store")
	case c.service && c.outbox:
		return errors.New("--outbox is for the demonstration; leave it out with --serve and --produce")
	case c.work < 0 || c.drain < 0:
		return fmt.Errorf("--work %v or --drain %v is negative", c.work, c.drain)
	}
	return nil
}
