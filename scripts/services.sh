#!/usr/bin/env bash
# Starts the servers that the tests need, natively, on loopback: see usage below.
set -euo pipefail

usage() {
  cat <<'EOF'
usage: scripts/services.sh start [name…] | stop | status | env

  start   installs what is missing and starts the named services, or all of them:
          redis           one node
          redis-cluster   three masters with a replica each
          kafka           one KRaft node
          Already running ones are left alone. Returns when each answers.
  stop    stops what start started and removes its data.
  status  one line a service.
  env     prints the addresses of those that answer, to be evaluated by a shell:
          eval "$(scripts/services.sh env)"

Environment: IDEMQ_SERVICES_DIR (data and logs; default a folder under TMPDIR),
IDEMQ_REDIS_PORT (16379), IDEMQ_REDIS_CLUSTER_PORT (17000, the first of six),
IDEMQ_KAFKA_PORT (19092; its controller takes the next one).
EOF
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=${IDEMQ_SERVICES_DIR:-${TMPDIR:-/tmp}/idemq-services-$(id -u)}
cache=${XDG_CACHE_HOME:-$HOME/.cache}/idemq
redis_port=${IDEMQ_REDIS_PORT:-16379}
cluster_port=${IDEMQ_REDIS_CLUSTER_PORT:-17000}
kafka_port=${IDEMQ_KAFKA_PORT:-19092}
kafka_version=4.1.1
kafka_lib=$cache/kafka-$kafka_version
all="redis redis-cluster kafka"

say() { printf 'services: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# await SECONDS COMMAND…: until the command succeeds.
await() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.1
  done
}

# alive NAME: the process of NAME's pid file runs, and is ours: its working directory is its folder.
alive() {
  local pid
  pid=$(cat "$dir/$1/pid" 2>/dev/null) && [ -n "$pid" ] && [ "$(readlink "/proc/$pid/cwd" 2>/dev/null)" = "$(readlink -f "$dir/$1")" ]
}

port_open() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

port_free() { ! port_open "$2" || die "$1: port $2 is taken by another process; stop it or choose another by the environment (see --help)"; }

# launch NAME COMMAND…: in the background, beyond this shell, with a log and a pid file.
launch() {
  local name=$1; shift
  (cd "$dir/$name" && exec setsid nohup "$@" >"$dir/$name/log" 2>&1 </dev/null) &
  echo $! >"$dir/$name/pid"
}

# ready NAME SECONDS COMMAND…: waits until the server answers, or shows its log and fails.
ready() {
  local name=$1 secs=$2; shift 2
  await "$secs" "$@" && return
  say "$name does not answer; the end of its log:"
  tail -n 40 "$dir/$name/log" >&2 || true
  return 1
}

end() {
  alive "$1" || { rm -rf "${dir:?}/$1"; return 0; }
  local pid; pid=$(cat "$dir/$1/pid")
  kill "$pid" 2>/dev/null || true
  await 10 not_alive "$1" || kill -9 "$pid" 2>/dev/null || true
  rm -rf "${dir:?}/$1"
}
not_alive() { ! alive "$1"; }

root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

apt_install() {
  say "installing $*"
  root env DEBIAN_FRONTEND=noninteractive apt-get update -q >&2
  root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@" >&2
}

install_redis() {
  command -v redis-server >/dev/null && command -v redis-cli >/dev/null || apt_install redis-server
}

install_kafka() {
  [ -e "$kafka_lib/.complete" ] && return
  command -v java >/dev/null || apt_install default-jre-headless
  command -v mvn >/dev/null || apt_install maven
  say "fetching Kafka $kafka_version"
  mkdir -p "$kafka_lib"
  mvn -q -B -f "$here/kafka-pom.xml" dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$kafka_lib" >&2
  touch "$kafka_lib/.complete"
}

# --- Redis

redis_answers() { [ "$(redis-cli -p "$1" ping 2>/dev/null)" = PONG ]; }

launch_redis() { # NAME PORT ARGS…
  local name=$1 port=$2; shift 2
  port_free "$name" "$port"
  mkdir -p "$dir/$name"
  launch "$name" redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$dir/$name" --pidfile "$dir/$name/own.pid" "$@"
}

start_redis() {
  install_redis
  alive redis || launch_redis redis "$redis_port"
  ready redis 20 redis_answers "$redis_port"
}

cluster_ok() {
  local i
  for i in 0 1 2 3 4 5; do
    redis-cli -p $((cluster_port + i)) cluster info 2>/dev/null | grep -q '^cluster_state:ok' || return 1
  done
  [ "$(redis-cli -p "$cluster_port" cluster nodes | grep -c 'slave.*connected')" = 3 ] || return 1
  for i in 0 1 2 3 4 5; do # every replica has caught up
    redis-cli -p $((cluster_port + i)) info replication | grep -q '^master_link_status:down' && return 1
  done
  return 0
}

start_redis_cluster() {
  install_redis
  local i fresh=''
  for i in 0 1 2 3 4 5; do
    alive "redis-cluster-$i" && continue
    [ -e "$dir/redis-cluster-$i/nodes.conf" ] || fresh=yes
    launch_redis "redis-cluster-$i" $((cluster_port + i)) --cluster-enabled yes --cluster-config-file nodes.conf --cluster-node-timeout 2000
  done
  for i in 0 1 2 3 4 5; do ready "redis-cluster-$i" 20 redis_answers $((cluster_port + i)); done
  if [ -n "$fresh" ]; then
    local nodes=''
    for i in 0 1 2 3 4 5; do nodes="$nodes 127.0.0.1:$((cluster_port + i))"; done
    # shellcheck disable=SC2086
    redis-cli --cluster create $nodes --cluster-replicas 1 --cluster-yes >"$dir/redis-cluster-0/create.log" 2>&1 ||
      { cat "$dir/redis-cluster-0/create.log" >&2; die "redis-cluster: could not be made"; }
  fi
  ready redis-cluster-0 60 cluster_ok
}

# --- Kafka

# An ApiVersions request (key 18, version 0, correlation 1, no client ID), answered with that correlation.
kafka_answers() {
  port_open "$kafka_port" || return 1
  local answer
  answer=$(exec 3<>"/dev/tcp/127.0.0.1/$kafka_port" &&
    printf '\0\0\0\12\0\22\0\0\0\0\0\1\377\377' >&3 && timeout 5 head -c 8 <&3 | od -An -tx1 | tr -d ' \n')
  [ "${answer:8}" = 00000001 ]
}

start_kafka() {
  install_kafka
  if ! alive kafka; then
    port_free kafka "$kafka_port"
    port_free kafka $((kafka_port + 1))
    mkdir -p "$dir/kafka"
    cat >"$dir/kafka/server.properties" <<EOF
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$((kafka_port + 1))
listeners=PLAINTEXT://127.0.0.1:$kafka_port,CONTROLLER://127.0.0.1:$((kafka_port + 1))
advertised.listeners=PLAINTEXT://127.0.0.1:$kafka_port
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs=$dir/kafka/data
num.partitions=4
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
auto.create.topics.enable=false
EOF
    if [ ! -e "$dir/kafka/data/meta.properties" ]; then
      java -cp "$kafka_lib/*" kafka.tools.StorageTool format -t aWRlbXEtdGVzdHMta2Fma2E -c "$dir/kafka/server.properties" >"$dir/kafka/log" 2>&1 ||
        { cat "$dir/kafka/log" >&2; die "kafka: its folder could not be formatted"; }
    fi
    launch kafka java -Xms256m -Xmx768m -cp "$kafka_lib/*" kafka.Kafka "$dir/kafka/server.properties"
  fi
  ready kafka 60 kafka_answers
}

# --- commands

members() { if [ "$1" = redis-cluster ]; then echo redis-cluster-{0..5}; else echo "$1"; fi; }

running() { local m; for m in $(members "$1"); do alive "$m" || return 1; done; }

start() {
  mkdir -p "$dir"
  local name pid failed='' pids=()
  # Installing is done by one at a time; starting is done side by side.
  for name in "$@"; do
    case $name in
      redis | redis-cluster) install_redis ;;
      kafka) install_kafka ;;
      *) usage >&2; die "unknown service: $name" ;;
    esac
  done
  for name in "$@"; do
    "start_${name//-/_}" & pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=yes; done
  [ -z "$failed" ] || die "not everything could be started; logs are in $dir"
  status "$@"
}

stop() {
  local name m
  for name in $all; do for m in $(members "$name"); do end "$m"; done; done
  rmdir "$dir" 2>/dev/null || true
}

status() {
  local name
  for name in "$@"; do
    if running "$name"; then say "$name runs"; else say "$name does not run"; fi
  done
}

env_() {
  local i addrs=''
  running redis && echo "export IDEMQ_REDIS_ADDR=127.0.0.1:$redis_port"
  if running redis-cluster; then
    for i in 0 1 2 3 4 5; do addrs="$addrs,127.0.0.1:$((cluster_port + i))"; done
    echo "export IDEMQ_REDIS_CLUSTER_ADDRS=${addrs#,}"
  fi
  running kafka && echo "export IDEMQ_KAFKA_BROKERS=127.0.0.1:$kafka_port IDEMQ_KAFKA_LIB=$kafka_lib"
  return 0
}

case ${1:-} in
  start) shift; if [ $# = 0 ]; then set -- $all; fi; start "$@" ;;
  stop) stop ;;
  status) status $all ;;
  env) env_ ;;
  -h | --help | help) usage ;;
  *) usage >&2; exit 2 ;;
esac
