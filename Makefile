.PHONY: test bench bench-rivals bench-once lint demo examples
SHELL := /bin/bash

# Everything, with the race detector, on real servers: containers where a Docker engine
# answers, else servers that scripts/services.sh installs and starts; they go on running for the
# next time, until scripts/services.sh stop. Three packages at once, whatever the machine: the servers
# are shared, and tests of leases and sessions of 2 s need their share of them; in each, four of the tests that mostly wait.
# The longest ones begin first. Before them go
# the programs of examples/, without the race detector: they take seconds, and most of that code is others'; and the
# tests that count allocations, because the race detector allocates.
LONGEST = ./internal/chaos ./brokers/rocketmq ./cmd/example-consumer ./dedup/tierstore ./dedup/sqlstore ./outbox ./brokers/rabbitmq \
	./brokers/kafka ./dedup/deduptest ./internal/testenv ./internal/integration ./dedup/redisstore ./dedup/httpdedup ./dedup/memstore ./internal/bench
# The race detector watches everything but what SQLite's C was translated into, which only tests run and which takes four
# times the processor when it is watched. Only that one package: it shares no instance of a generic function of the
# standard library, which would go unwatched for everybody. Vet is lint's.
RACE = -race -vet=off -gcflags=modernc.org/sqlite/lib=-race=false
test:
	@if docker info >/dev/null 2>&1; then \
		(cd examples && go test -count=1 ./...) && \
		go test -count=1 -run Allocations ./dedup/httpdedup && \
		go test $(RACE) -count=1 -timeout 30m -p 3 -parallel 4 $(LONGEST) ./...; \
	else \
		scripts/services.sh start && eval "$$(scripts/services.sh env)" && \
		export IDEMQ_REQUIRE_SERVICES=1 && \
		(cd examples && go test -count=1 ./...) && \
		go test -count=1 -run Allocations ./dedup/httpdedup && \
		go test $(RACE) -count=1 -timeout 30m -p 3 -parallel 4 $(LONGEST) ./...; \
	fi

# The numbers of the README, beside the raw clients, the usual SETNX loop, watermill's forwarder and fiber's middleware;
# an hour or more of a quiet machine. The tables of bench/ are Markdown. BENCH chooses some of bench/, and BENCHFLAGS
# how much of it: make bench-rivals BENCH=Drain BENCHFLAGS='-rows 10000 -rounds 1'
BENCH ?= .
BENCHFLAGS ?=
bench: bench-once
	eval "$$(scripts/services.sh env)" && export IDEMQ_REQUIRE_SERVICES=1 && \
	go test -run '^$$' -bench . -benchtime 1x -timeout 60m -v ./internal/bench/ && \
	go test -run '^$$' -bench . -timeout 60m ./dedup/sqlstore ./dedup/tierstore ./dedup/httpdedup
	$(MAKE) bench-rivals

bench-rivals:
	scripts/services.sh start
	eval "$$(scripts/services.sh env)" && cd bench && \
	IDEMQ_REQUIRE_SERVICES=1 go test -run '^$$' -bench '$(BENCH)' -benchtime 1x -timeout 3h . $(if $(BENCHFLAGS),-args $(BENCHFLAGS))

# Those of bench/, a module of its own because of the libraries that it compares with, with next to nothing to do: that they work.
bench-once:
	scripts/services.sh start
	eval "$$(scripts/services.sh env)" && cd bench && go vet ./... && IDEMQ_REQUIRE_SERVICES=1 go test -count=1 -timeout 20m .

lint:
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt on these"; exit 1; }
	go vet ./...
	cd examples && go vet ./...
	go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

demo:
	go run ./cmd/example-consumer

# The programs of examples/, a module of its own because of the routers, sqlx and gorm that it brings.
examples:
	cd examples && go vet ./... && go test ./...
