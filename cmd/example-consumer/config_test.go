package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/idemq/idemq/dedup/sqlstore"
)

func TestCommandLineErrorsSayWhatThereIs(t *testing.T) {
	const brokersVar = "IDEMQ_KAFKA_BROKERS"
	const brokers = "kafka, rabbitmq, rocketmq"
	const stores = "redis, postgres, mysql, sqlite, tier"
	both := map[string]string{brokersVar: "k:9092", redisVar.name: "r:6379"}
	for _, c := range []struct {
		name string
		args []string
		env  map[string]string
		want string
	}{
		{"unknown broker", []string{"--broker", "nats", "--store", "redis"}, both, `unknown --broker "nats"; there are: kafka (address in IDEMQ_KAFKA_BROKERS), rabbitmq (address in IDEMQ_RABBITMQ_URL), rocketmq (address in IDEMQ_ROCKETMQ_NAMESRV)`},
		{"unknown store", []string{"--broker", "kafka", "--store", "etcd"}, both, `unknown --store "etcd"; there are: ` + stores},
		{"store alone", []string{"--store", "redis"}, both, "--store redis needs a --broker beside it: " + brokers},
		{"broker alone", []string{"--broker", "kafka"}, both, "--broker kafka needs a --store beside it: " + stores},
		{"no brokers", []string{"--broker", "kafka", "--store", "redis"}, map[string]string{redisVar.name: "r:6379"}, "--broker kafka: IDEMQ_KAFKA_BROKERS is not set; set it to host:port of a broker, several with commas"},
		{"no node", []string{"--broker", "rabbitmq", "--store", "redis"}, both, "--broker rabbitmq: IDEMQ_RABBITMQ_URL is not set; set it to amqp://user:password@host:port/ of a node, several with commas"},
		{"no redis", []string{"--broker", "kafka", "--store", "redis"}, map[string]string{brokersVar: "k:9092"}, "--store redis: IDEMQ_REDIS_ADDR is not set; set it to host:port"},
		{"no postgres", []string{"--broker", "kafka", "--store", "postgres"}, both, "--store postgres: IDEMQ_POSTGRES_DSN is not set; set it to postgres://user:password@host:port/database"},
		{"no mysql", []string{"--broker", "kafka", "--store", "mysql"}, both, "--store mysql: IDEMQ_MYSQL_DSN is not set; set it to user:password@tcp(host:port)/database"},
		{"one tier", []string{"--broker", "kafka", "--store", "tier"}, both, "--store tier: neither IDEMQ_POSTGRES_DSN nor IDEMQ_MYSQL_DSN is set; set one to postgres://user:password@host:port/database, or user:password@tcp(host:port)/database"},
		{"other tier", []string{"--broker", "kafka", "--store", "tier"}, map[string]string{brokersVar: "k:9092", postgresVar.name: "p"}, "--store tier: IDEMQ_REDIS_ADDR is not set; set it to host:port"},
		{"too few orders", []string{"--orders", "19"}, nil, "--orders 19 is below 20, too few for a failure and a kill of each kind"},
		{"produce to nowhere", []string{"--produce", "3"}, nil, "--serve and --produce need --broker and --store"},
		{"outbox of a service", []string{"--broker", "kafka", "--store", "redis", "--serve", "--outbox"}, both, "--outbox is for the demonstration; leave it out with --serve and --produce"},
		{"negative work", []string{"--work", "-1s"}, nil, "--work -1s or --drain 25s is negative"},
		{"argument", []string{"demo"}, nil, `unexpected argument "demo"; there are only flags, see --help`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(c.args, func(k string) string { return c.env[k] }, &bytes.Buffer{})
			require.EqualError(t, err, c.want)
		})
	}
}

func TestServersComeFromTheEnvironment(t *testing.T) {
	env := func(k string) string {
		return map[string]string{"IDEMQ_KAFKA_BROKERS": "a:1,b:2", redisVar.name: "r:3", mysqlVar.name: "m", sqliteVar.name: "/s.db"}[k]
	}
	c, err := parse([]string{"--broker", "kafka", "--store", "redis", "--serve"}, env, &bytes.Buffer{})
	require.NoError(t, err)
	require.Equal(t, servers{Kind: "kafka", Brokers: []string{"a:1", "b:2"}, Redis: "r:3", Store: "redis"}, c.servers)
	require.True(t, c.service)

	c, err = parse([]string{"--broker", "kafka", "--store", "redis"}, env, &bytes.Buffer{})
	require.NoError(t, err)
	require.False(t, c.service)

	for store, want := range map[string]servers{
		"mysql":  {Dialect: sqlstore.MySQL, DSN: "m"},
		"sqlite": {Dialect: sqlstore.SQLite, DSN: sqliteDSN("/s.db")},
		"tier":   {Dialect: sqlstore.MySQL, DSN: "m", Redis: "r:3"},
	} {
		c, err = parse([]string{"--broker", "kafka", "--store", store}, env, &bytes.Buffer{})
		require.NoError(t, err)
		want.Kind, want.Brokers, want.Store = "kafka", []string{"a:1", "b:2"}, store
		require.Equal(t, want, c.servers)
	}

	c, err = parse(nil, env, &bytes.Buffer{})
	require.NoError(t, err)
	require.Zero(t, c.servers, "without flags everything is embedded, whatever the environment says")
}

func TestHelpIsNoError(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), []string{"--help"}, func(string) string { return "" }, &out, &out))
	require.Contains(t, out.String(), "-broker")
}
