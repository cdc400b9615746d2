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
          rabbitmq        one node
          rocketmq        a name server and a broker with short delay levels
          postgres        PostgreSQL
          mysql           MariaDB
          chromium        the browser: it is installed, and tests start it themselves
          What runs already is left alone. Returns when each service answers; shows the
          end of the server's log and exits with 1 when one does not.
  stop    stops what start started, and removes its data.
  status  one line a service; exits with 3 when one of them does not answer.
  env     prints the addresses of those that answer, for a shell to evaluate:
          eval "$(scripts/services.sh env)"

Environment:
  IDEMQ_SERVICES_DIR        data, logs and pid files (${TMPDIR:-/tmp}/idemq-services-<uid>)
  IDEMQ_REDIS_PORT          16379
  IDEMQ_REDIS_CLUSTER_PORT  17000, the first of six; each also takes its number + 10000
  IDEMQ_KAFKA_PORT          19092; the controller takes the next one
  IDEMQ_RABBITMQ_PORT       15674; Erlang's port mapper and its distribution take the next two
  IDEMQ_ROCKETMQ_PORT       19876, the name server's; the broker takes its number + 1035,
                            the one after that, and the second one before
  IDEMQ_POSTGRES_PORT       15432
  IDEMQ_MYSQL_PORT          13306
The jars of Kafka and RocketMQ are kept in ${XDG_CACHE_HOME:-~/.cache}/idemq.
EOF
}

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
dir=${IDEMQ_SERVICES_DIR:-${TMPDIR:-/tmp}/idemq-services-$(id -u)}
redis_port=${IDEMQ_REDIS_PORT:-16379}
cluster_port=${IDEMQ_REDIS_CLUSTER_PORT:-17000}
kafka_port=${IDEMQ_KAFKA_PORT:-19092}
rabbitmq_port=${IDEMQ_RABBITMQ_PORT:-15674}
rabbitmq_bin=/usr/lib/rabbitmq/bin
kafka_version=4.1.1
kafka_lib=${XDG_CACHE_HOME:-$HOME/.cache}/idemq/kafka-$kafka_version
rocketmq_port=${IDEMQ_ROCKETMQ_PORT:-19876}
rocketmq_broker_port=$((rocketmq_port + 1035))
rocketmq_version=5.3.3
rocketmq_lib=${XDG_CACHE_HOME:-$HOME/.cache}/idemq/rocketmq-$rocketmq_version
all=(redis redis-cluster kafka rabbitmq rocketmq postgres mysql chromium)
cluster_nodes=(0 1 2 3 4 5)

say() { printf 'services: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# --- Processes. Each has a folder: its data, its log, and its pid.

# alive NAME: the process of NAME's pid file runs and is ours, which its working directory
# tells: its folder, or one in it. A number that the system has given to somebody else meanwhile is not.
alive() {
  local pid
  pid=$(cat "$dir/$1/pid" 2>/dev/null) && [ -n "$pid" ] || return
  case $(readlink "/proc/$pid/cwd" 2>/dev/null)/ in "$(readlink -f "$dir/$1")"/*) ;; *) return 1 ;; esac
}
dead() { ! alive "$1"; }

# port_free NAME PORT VARIABLE: or a message that says which port, who has it and what to do.
port_free() {
  (exec 3<>"/dev/tcp/127.0.0.1/$2") 2>/dev/null || return 0
  local who
  who=$(ss -Hltnp "sport = :$2" 2>/dev/null | grep -o 'users:.*' | head -n 1) || true
  die "$1: port $2 is taken by another process${who:+ ($who)}; stop it, or set $3 to another port"
}

# launch NAME COMMAND…: beyond the life of this shell. Descriptor 9 is the lock of this run;
# a server that kept it would keep everybody else out.
launch() {
  local name=$1; shift
  (cd "$dir/$name" && exec setsid nohup "$@" >"$dir/$name/log" 2>&1 </dev/null 9>&-) &
  echo $! >"$dir/$name/pid"
}

# await SECONDS COMMAND…: until the command succeeds.
await() {
  local end=$((SECONDS + $1)); shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.1
  done
}

# ready NAME SECONDS COMMAND…: until the server answers, or its log and a failure.
ready() {
  local name=$1 secs=$2; shift 2
  if await "$secs" answers_or_dead "$name" "$@" && alive "$name"; then return 0; fi
  if alive "$name"; then say "$name gave no right answer within $secs s; the end of its log:"
  else say "$name has ended; the end of its log:"; fi
  tail -n 40 "$dir/$name/log" >&2 || true
  return 1
}
answers_or_dead() { dead "$1" || "${@:2}"; }

signal() { if alive "$2"; then kill "-$1" "$(cat "$dir/$2/pid")" 2>/dev/null || true; fi; }

# --- Installing

root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

# Debian starts a packaged server while it installs it; ours are our own, so it must not. What
# forbids that is a file of this name; one that stands there already has its own word.
policy=/usr/sbin/policy-rc.d
forbid_starting() {
  [ ! -e "$policy" ] || return 0
  trap 'root rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' | root tee "$policy" >/dev/null
  root chmod 755 "$policy"
}
allow_starting() {
  [ -n "$(trap -p EXIT)" ] || return 0
  root rm -f "$policy"
  trap - EXIT
}

apt_install() { # PACKAGE COMMAND
  command -v "$2" >/dev/null && return
  command -v apt-get >/dev/null || die "$2 is not installed, and there is no apt-get to install $1 with"
  say "installing $1"
  root env DEBIAN_FRONTEND=noninteractive apt-get update -q >&2 9>&- || die "$1: apt-get update failed"
  forbid_starting
  root env DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$1" >&2 9>&- ||
    die "$1: apt-get could not install it"
  allow_starting
}

install_redis() {
  apt_install redis-server redis-server
  apt_install redis-tools redis-cli
}

install_jars() { # NAME VERSION FOLDER
  apt_install default-jre-headless java
  [ -d "$3" ] && return
  apt_install maven mvn
  say "fetching $1 $2"
  rm -rf "$3.part" # what an interrupted run left
  mkdir -p "$3.part"
  mvn -q -B -f "$here/$1-pom.xml" dependency:copy-dependencies -DincludeScope=runtime \
    -DoutputDirectory="$3.part" </dev/null >&2 9>&- || die "$1: Maven could not fetch it"
  mv "$3.part" "$3"
}

install_rabbitmq() { apt_install rabbitmq-server rabbitmq-server; }
install_chromium() { apt_install chromium chromium; }
install_kafka() { install_jars kafka "$kafka_version" "$kafka_lib"; }
install_rocketmq() { install_jars rocketmq "$rocketmq_version" "$rocketmq_lib"; }

# --- Redis

redis_answers() { [ "$(timeout 2 redis-cli -p "$1" ping 2>/dev/null)" = PONG ]; }

launch_redis() { # NAME PORT VARIABLE ARGS…
  local name=$1 port=$2 variable=$3; shift 3
  port_free "$name" "$port" "$variable"
  mkdir -p "$dir/$name"
  launch "$name" redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$dir/$name" "$@"
}

answers_redis() { alive redis && redis_answers "$redis_port"; }

start_redis() {
  alive redis || launch_redis redis "$redis_port" IDEMQ_REDIS_PORT
  ready redis 20 redis_answers "$redis_port"
}

# Every node finds the cluster complete, and each of the three replicas has caught up.
answers_redis_cluster() {
  local i synced=0
  for i in "${cluster_nodes[@]}"; do
    alive "redis-cluster-$i" || return 1
    timeout 2 redis-cli -p $((cluster_port + i)) cluster info 2>/dev/null | grep -q '^cluster_state:ok' || return 1
    if timeout 2 redis-cli -p $((cluster_port + i)) info replication | grep -q '^master_link_status:up'; then
      synced=$((synced + 1))
    fi
  done
  [ "$synced" = 3 ] &&
    [ "$(redis-cli -p "$cluster_port" cluster nodes | awk '$3 ~ /slave/ && $3 !~ /fail/ && $8 == "connected"' | wc -l)" = 3 ]
}

# A cluster whose making was interrupted, or a node of which lost its folder, is made anew:
# the nodes that know each other would not take in the one that knows nobody.
start_redis_cluster() {
  local i made=$dir/redis-cluster-0/made nodes=()
  for i in "${cluster_nodes[@]}"; do
    [ -e "$made" ] && [ -e "$dir/redis-cluster-$i/nodes.conf" ] && continue
    end redis-cluster-{0..5}
    break
  done
  for i in "${cluster_nodes[@]}"; do
    nodes+=("127.0.0.1:$((cluster_port + i))")
    alive "redis-cluster-$i" && continue
    port_free "redis-cluster-$i" $((cluster_port + i + 10000)) IDEMQ_REDIS_CLUSTER_PORT
    launch_redis "redis-cluster-$i" $((cluster_port + i)) IDEMQ_REDIS_CLUSTER_PORT --cluster-enabled yes \
      --cluster-config-file nodes.conf --cluster-node-timeout 2000 --repl-diskless-sync-delay 0
  done
  for i in "${cluster_nodes[@]}"; do ready "redis-cluster-$i" 20 redis_answers $((cluster_port + i)) || return 1; done
  if [ ! -e "$made" ]; then
    redis-cli --cluster create "${nodes[@]}" --cluster-replicas 1 --cluster-yes >"$dir/redis-cluster-0/create.log" 2>&1 </dev/null ||
      { tail -n 40 "$dir/redis-cluster-0/create.log" >&2; die "redis-cluster: the nodes could not be joined"; }
    touch "$made"
  fi
  ready redis-cluster-0 60 answers_redis_cluster
}

# --- Kafka

# A Metadata request (key 3, version 1, correlation 1, no client ID, no topics) is answered with
# that correlation and one broker. An open port is not enough, and a broker that does not list
# itself yet would refuse to create topics.
kafka_answers() {
  local answer
  answer=$( (exec 3<>"/dev/tcp/127.0.0.1/$kafka_port" &&
    printf '\0\0\0\16\0\3\0\1\0\0\0\1\377\377\0\0\0\0' >&3 &&
    timeout 5 head -c 12 <&3 | od -An -tx1 | tr -d ' \n') 2>/dev/null) || return 1
  [ "${answer:8}" = 0000000100000001 ]
}

answers_kafka() { alive kafka && kafka_answers; }

kafka_properties() {
  cat <<EOF
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
}

start_kafka() {
  if dead kafka; then
    port_free kafka "$kafka_port" IDEMQ_KAFKA_PORT
    port_free kafka $((kafka_port + 1)) IDEMQ_KAFKA_PORT
    mkdir -p "$dir/kafka"
    kafka_properties >"$dir/kafka/server.properties"
    if [ ! -e "$dir/kafka/data/meta.properties" ]; then
      java -cp "$kafka_lib/*" kafka.tools.StorageTool format -t aWRlbXEtdGVzdHMta2Fma2E \
        -c "$dir/kafka/server.properties" >"$dir/kafka/log" 2>&1 </dev/null 9>&- ||
        { tail -n 40 "$dir/kafka/log" >&2; die "kafka: its folder could not be formatted"; }
    fi
    launch kafka java -Xms256m -Xmx768m -cp "$kafka_lib/*" kafka.Kafka "$dir/kafka/server.properties"
  fi
  ready kafka 90 kafka_answers
}

# --- RabbitMQ

# The server opens AMQP's handshake: its first frame is a method. The port is opened last.
rabbitmq_answers() {
  [ "$( (exec 3<>"/dev/tcp/127.0.0.1/$rabbitmq_port" && printf 'AMQP\0\0\11\1' >&3 &&
    timeout 5 head -c 1 <&3 | od -An -tx1 | tr -d ' \n') 2>/dev/null)" = 01 ]
}

answers_rabbitmq() { alive rabbitmq && rabbitmq_answers; }

port_mapper_answers() { epmd -port $((rabbitmq_port + 1)) -names; }

# A port mapper of its own, which ends with it, instead of a daemon for the whole machine. The
# packaged wrapper would change to the user and the folders of the packaged server; in the mode
# meant for service managers the script becomes the server, and leaves signals to it.
start_rabbitmq() {
  local i folder=$dir/rabbitmq
  if dead rabbitmq-epmd; then
    port_free rabbitmq-epmd $((rabbitmq_port + 1)) IDEMQ_RABBITMQ_PORT
    mkdir -p "$dir/rabbitmq-epmd"
    launch rabbitmq-epmd epmd -port $((rabbitmq_port + 1)) -address 127.0.0.1
  fi
  ready rabbitmq-epmd 20 port_mapper_answers || return 1
  if dead rabbitmq; then
    for i in 0 2; do port_free rabbitmq $((rabbitmq_port + i)) IDEMQ_RABBITMQ_PORT; done
    mkdir -p "$folder"
    echo '[].' >"$folder/plugins"
    launch rabbitmq env HOME="$folder" ERL_EPMD_PORT=$((rabbitmq_port + 1)) RUNNING_UNDER_SYSTEMD=1 \
      RABBITMQ_NODENAME=idemq@localhost RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 RABBITMQ_NODE_PORT="$rabbitmq_port" \
      RABBITMQ_DIST_PORT=$((rabbitmq_port + 2)) RABBITMQ_MNESIA_BASE="$folder/data" RABBITMQ_LOG_BASE="$folder" RABBITMQ_LOGS=- \
      RABBITMQ_CONF_ENV_FILE=/dev/null RABBITMQ_CONFIG_FILE="$folder/none" RABBITMQ_ENABLED_PLUGINS_FILE="$folder/plugins" \
      "$rabbitmq_bin/rabbitmq-server"
  fi
  ready rabbitmq 90 rabbitmq_answers
}

# --- RocketMQ

# The name server is asked for its cluster (code 106): it answers before a broker has
# registered with it, but then names none.
rocketmq_answers() {
  local header='{"code":106,"language":"GO","version":317,"opaque":1,"flag":0}' answer
  answer=$( (exec 3<>"/dev/tcp/127.0.0.1/$rocketmq_port" &&
    printf "$(printf '\\0\\0\\0\\%o\\0\\0\\0\\%o' $((${#header} + 4)) ${#header})%s" "$header" >&3 &&
    timeout 1 cat <&3 | tr -d '\0') 2>/dev/null) || true
  case $answer in *broker-a*) (exec 3<>"/dev/tcp/127.0.0.1/$rocketmq_broker_port") 2>/dev/null ;; *) return 1 ;; esac
}

answers_rocketmq() { alive rocketmq-namesrv && alive rocketmq-broker && rocketmq_answers; }

# The delay levels are shorter than the standard ones, so that tests need not wait for minutes; and a send may wait
# for longer than 200 ms: a machine that is busy with tests is not a broker that has too much to do.
rocketmq_conf() {
  cat <<EOF
brokerClusterName=DefaultCluster
brokerName=broker-a
brokerId=0
brokerIP1=127.0.0.1
listenPort=$rocketmq_broker_port
namesrvAddr=127.0.0.1:$rocketmq_port
storePathRootDir=$dir/rocketmq-broker/data
autoCreateTopicEnable=false
enablePropertyFilter=true
flushDiskType=ASYNC_FLUSH
mappedFileSizeCommitLog=67108864
mappedFileSizeConsumeQueue=600000
diskMaxUsedSpaceRatio=99
waitTimeMillsInSendQueue=5000
transactionTimeOut=3000
transactionCheckInterval=3000
messageDelayLevel=1s 1s 2s 2s 3s 3s 4s 4s 5s 5s 6s 6s 7s 7s 8s 8s 9s 9s
EOF
}

start_rocketmq() {
  local port opens=(--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED --add-opens=java.base/java.nio=ALL-UNNAMED
    --add-exports=java.base/sun.nio.ch=ALL-UNNAMED)
  if dead rocketmq-namesrv; then
    port_free rocketmq "$rocketmq_port" IDEMQ_ROCKETMQ_PORT
    mkdir -p "$dir/rocketmq-namesrv"
    echo "listenPort=$rocketmq_port" >"$dir/rocketmq-namesrv/namesrv.properties"
    ROCKETMQ_HOME="$dir/rocketmq-namesrv" launch rocketmq-namesrv java -Xmx256m -cp "$rocketmq_lib/*" \
      "-Duser.home=$dir/rocketmq-namesrv" org.apache.rocketmq.namesrv.NamesrvStartup -c "$dir/rocketmq-namesrv/namesrv.properties"
  fi
  if dead rocketmq-broker; then
    for port in $((rocketmq_broker_port - 2)) "$rocketmq_broker_port" $((rocketmq_broker_port + 1)); do
      port_free rocketmq "$port" IDEMQ_ROCKETMQ_PORT
    done
    mkdir -p "$dir/rocketmq-broker"
    rocketmq_conf >"$dir/rocketmq-broker/broker.conf"
    ROCKETMQ_HOME="$dir/rocketmq-broker" launch rocketmq-broker java -Xmx512m -XX:MaxDirectMemorySize=512m "${opens[@]}" \
      -cp "$rocketmq_lib/*" "-Duser.home=$dir/rocketmq-broker" org.apache.rocketmq.broker.BrokerStartup -c "$dir/rocketmq-broker/broker.conf"
  fi
  ready rocketmq-broker 90 rocketmq_answers && ready rocketmq-namesrv 5 true
}

. "$here/services-sql.sh"

# --- Chromium is a program of the tests and no server: there is nothing to start or stop.

start_chromium() { :; }
answers_chromium() { command -v chromium >/dev/null; }

# --- Commands

members() {
  case $1 in
    chromium) ;;
    redis-cluster) echo redis-cluster-{0..5} ;;
    rabbitmq) echo rabbitmq rabbitmq-epmd ;; # the port mapper is told to end last
    rocketmq) echo rocketmq-broker rocketmq-namesrv ;;
    *) echo "$1" ;;
  esac
}

# One run at a time: two shells must not start the same server twice.
lock() {
  mkdir -p "$dir"
  [ -O "$dir" ] || die "$dir belongs to somebody else; set IDEMQ_SERVICES_DIR"
  exec 9>"$dir/lock"
  flock 9
}

start() {
  local name pid failed='' pids=()
  for name in "$@"; do
    case " ${all[*]} " in *" $name "*) ;; *) usage >&2; die "unknown service: $name" ;; esac
  done
  lock
  # Installing is done one by one, starting side by side.
  for name in "$@"; do case $name in redis | redis-cluster) install_redis ;; *) "install_$name" ;; esac; done
  for name in "$@"; do
    "start_${name//-/_}" & pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || failed=yes; done
  [ -z "$failed" ] || die "not everything could be started; the logs are in $dir"
  status "$@"
}

# end NAME…: all are told first, then waited for. PostgreSQL, told by TERM, waits for its clients.
end() {
  local name
  for name in "$@"; do case $name in postgres) signal INT "$name" ;; *) signal TERM "$name" ;; esac; done
  for name in "$@"; do
    await 15 dead "$name" || { signal KILL "$name"; await 5 dead "$name" || say "$name does not end"; }
    rm -rf "${dir:?}/$name"
  done
}

stop() {
  [ -d "$dir" ] || return 0
  lock
  local name names=()
  for name in "${all[@]}"; do
    # shellcheck disable=SC2207 # the names have no blanks
    names+=($(members "$name"))
  done
  end "${names[@]}"
  rm -f "$dir/lock"
  rmdir "$dir" 2>/dev/null || say "$dir is kept: it holds files that are not the services'"
}

status() {
  local name m pids rc=0
  for name in "$@"; do
    pids=''
    for m in $(members "$name"); do alive "$m" && pids="$pids $(cat "$dir/$m/pid")"; done
    if "answers_${name//-/_}"; then
      if [ -n "$pids" ]; then say "$name answers (pid$pids)"; else say "$name is installed"; fi
    else
      rc=3
      if [ -n "$pids" ]; then say "$name does not answer (pid$pids); logs in $dir"
      elif [ "$name" = chromium ]; then say "$name is not installed"
      else say "$name does not run"; fi
    fi
  done
  return "$rc"
}

env_() {
  local i addrs='' out=''
  if answers_redis; then out="IDEMQ_REDIS_ADDR=127.0.0.1:$redis_port"; fi
  if answers_redis_cluster; then
    for i in "${cluster_nodes[@]}"; do addrs="$addrs,127.0.0.1:$((cluster_port + i))"; done
    out="$out IDEMQ_REDIS_CLUSTER_ADDRS=${addrs#,}"
  fi
  if answers_kafka; then out="$out IDEMQ_KAFKA_BROKERS=127.0.0.1:$kafka_port IDEMQ_KAFKA_LIB=$(printf '%q' "$kafka_lib")"; fi
  if answers_rabbitmq; then out="$out IDEMQ_RABBITMQ_URL=amqp://guest:guest@127.0.0.1:$rabbitmq_port/"; fi
  if answers_rocketmq; then
    out="$out IDEMQ_ROCKETMQ_NAMESRV=127.0.0.1:$rocketmq_port IDEMQ_ROCKETMQ_LIB=$(printf '%q' "$rocketmq_lib")"
  fi
  if answers_postgres; then out="$out IDEMQ_POSTGRES_DSN=$(printf '%q' "postgres://idemq:idemq@127.0.0.1:$postgres_port/idemq?sslmode=disable")"; fi
  if answers_mysql; then out="$out IDEMQ_MYSQL_DSN=$(printf '%q' "idemq:idemq@tcp(127.0.0.1:$mysql_port)/idemq")"; fi
  if answers_chromium; then out="$out IDEMQ_CHROMIUM=$(printf '%q' "$(command -v chromium)")"; fi
  [ -z "$out" ] || echo "export ${out# }"
}

case ${1:-} in
  start) shift; [ $# -gt 0 ] || set -- "${all[@]}"; start "$@" ;;
  stop) stop ;;
  status) status "${all[@]}" ;;
  env) env_ ;;
  -h | --help | help) usage ;;
  *) usage >&2; exit 2 ;;
esac
