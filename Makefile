.PHONY: test bench lint demo examples
SHELL := /bin/bash

# Everything, with the race detector, on real servers: containers where a Docker engine
# answers, else servers that scripts/services.sh installs and starts; they go on running for the
# next time, until scripts/services.sh stop. Two packages at once, whatever the machine: the servers
# are shared, and tests of leases and sessions of 2 s need their share of them. The longest one begins first.
test:
	@if docker info >/dev/null 2>&1; then \
		go test -race -count=1 -timeout 30m -p 2 ./internal/chaos/ ./...; \
	else \
		scripts/services.sh start && eval "$$(scripts/services.sh env)" && \
		IDEMQ_REQUIRE_SERVICES=1 go test -race -count=1 -timeout 30m -p 2 ./internal/chaos/ ./...; \
	fi

# The numbers of the README, beside the raw client and the usual SETNX loop.
bench:
	scripts/services.sh start
	eval "$$(scripts/services.sh env)" && IDEMQ_REQUIRE_SERVICES=1 go test -run '^$$' -bench . -benchtime 1x -timeout 60m -v ./internal/bench/ && \
	IDEMQ_REQUIRE_SERVICES=1 go test -run '^$$' -bench . -timeout 60m ./dedup/sqlstore ./dedup/tierstore

lint:
	@test -z "$$(gofmt -l .)" || { gofmt -l .; echo "run gofmt on these"; exit 1; }
	go vet ./...
	go run honnef.co/go/tools/cmd/staticcheck@v0.8.2 ./...

demo:
	go run ./cmd/example-consumer

# The programs of examples/, a module of its own because of the routers that it brings.
examples:
	cd examples && go vet ./... && go test ./...
