// Example-consumer shows idemq at work, and is a consumer service to start from.
//
//	go run ./cmd/example-consumer
//
// needs nothing but Go. It hosts a Kafka, a Redis and a SQLite database and starts consumers as
// child processes of the same binary, which it really kills with SIGKILL: before a handler's effect,
// between effect and verdict, between verdict and acknowledgement. Three subjects get the same orders,
// the same producer duplicates, the same failing handlers and the same kills: the usual SETNX loop,
// idemq, and idemq with effect and verdict in one database transaction. What happened is counted by the
// parent, to which every effect is a call, or, of the third, a row; not by the libraries.
// A table ends the run; the exit status is 1 if a column of idemq does not add up.
//
//	--seed N     another schedule of duplicates, failures and kills (default 1)
//	--orders N   how many orders (default 200, at least 20)
//	--json       the table as JSON, alone on stdout
//	--verbose    what the children log, on stderr
//	--outbox     orders come from a database, see below
//
// # Through an outbox
//
// With --outbox each order is a row and a message in an outbox, written in one SQLite transaction, of which one in nine is
// rolled back. An order that is sent again is there already, and changes nothing. A relay, a child process, too, publishes
// the messages; it is killed before the publish of a batch, and between the publish and its write-back. What is published twice
// for that has the outbox's ID, so consumers drop it. The exit status is 1, too, if a committed message is missing, if one
// that was rolled back is seen, or if any other is published twice.
//
// # Real servers
//
//	export IDEMQ_KAFKA_BROKERS=localhost:9092 IDEMQ_REDIS_ADDR=localhost:6379
//	go run ./cmd/example-consumer --broker kafka --store redis
//	go run ./cmd/example-consumer --broker kafka --store redis --produce 1000
//	go run ./cmd/example-consumer --broker kafka --store redis --serve
//
// or the same with another broker, whose address is in a variable of its own:
//
//	--broker rabbitmq   IDEMQ_RABBITMQ_URL=amqp://guest:guest@localhost:5672/
//	--broker rocketmq   IDEMQ_ROCKETMQ_NAMESRV=localhost:9876
//
// or with another store:
//
//	--store postgres    IDEMQ_POSTGRES_DSN=postgres://user:password@localhost:5432/database
//	--store mysql       IDEMQ_MYSQL_DSN=user:password@tcp(localhost:3306)/database (MariaDB, too)
//	--store sqlite      IDEMQ_SQLITE_FILE, a path (default: idemq-example.db in the temporary folder)
//	--store tier        IDEMQ_REDIS_ADDR in front of IDEMQ_POSTGRES_DSN or IDEMQ_MYSQL_DSN
//
// The first runs the demonstration there, in topics, queues and a table of its own, which it deletes. On Kafka the session
// timeout of its consumers is 2 s, which the broker must allow (group.min.session.timeout.ms). The
// second puts sample orders into a topic, making the topic or queue where it is missing. The third is a
// service: it consumes until SIGTERM or SIGINT, then drains and exits with 0; a second signal ends it at
// once. For each order it prints one JSON line on stdout, which is all its handler does. Its log is on stderr.
//
//	--topic T         the topic or queue to consume, and to produce to (default "orders")
//	--group G         the consumer group (default "example-consumer"); RabbitMQ has none
//	--listen A        address of the HTTP pages (default "localhost:8080")
//	--concurrency N   handlers at once; on Kafka orders of one customer are handled one after the other (default 16)
//	--work D          how long the handler takes (default 0)
//	--drain D         what running handlers get after the signal (default 25s)
//
// The pages: /metrics has every event of the library as Prometheus text; /healthz fails once a
// handler hangs beyond help, so that the process is restarted; /readyz fails, and says why, while the store
// cannot be trusted, the consumer does not receive, it drains, or a handler hangs.
//
// # The shop
//
//	go run ./cmd/example-consumer shop
//
// opens a small web shop on the same parts, embedded as well: a form with a one-time token, payments with an
// Idempotency-Key, and orders that go through the outbox and the broker to a ledger. It says on start
// what to try, and closes on SIGTERM or SIGINT.
//
//	--addr A        address of the pages (default "127.0.0.1:8080"); port 0 takes a free one
//	--form-ttl D    how long a form can be sent (default 1h)
//	--topic, --group   of the orders (default "shop-orders" and "shop")
//	--broker, --store   as above. Orders and ledger are in the database of the store; with redis, in a temporary one
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if ran, err := runAsChild(); ran {
		exit(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal is no longer caught
	exit(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr))
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "example-consumer:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run is the command without the process around it.
func run(ctx context.Context, args []string, env func(string) string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == shopName {
		return openShop(ctx, args[1:], env, stdout, stderr)
	}
	c, err := parse(args, env, stderr)
	if err != nil || c == nil {
		return err
	}
	switch {
	case c.produce > 0:
		return produce(ctx, c, stderr)
	case c.service:
		return serve(ctx, c, stdout, stderr)
	}
	e, err := startEmbedded(c.servers)
	if err != nil {
		return err
	}
	defer e.close() // its folder is a temporary one
	c.servers = e.servers
	return demo(ctx, c, stdout, stderr)
}
