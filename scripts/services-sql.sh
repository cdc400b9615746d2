# shellcheck shell=bash disable=SC2154 # read by services.sh, whose variables and functions it uses
# PostgreSQL and MariaDB. Both refuse to run as root, and then run as the users of their packages;
# what they own is the folder data in the service's folder, where they also put themselves. Both
# are reached by TCP only, and have a database idemq of a user idemq with that password, who may
# do in it what he likes and nothing elsewhere.

postgres_port=${IDEMQ_POSTGRES_PORT:-15432}
mysql_port=${IDEMQ_MYSQL_PORT:-13306}

# as USER COMMAND…: as that user if we are root, else as ourselves. It becomes the command.
as() {
  local user=$1; shift
  if [ "$(id -u)" = 0 ]; then exec setpriv --reuid "$user" --regid "$user" --init-groups "$@"; else exec "$@"; fi
}
as_shown() { if [ "$(id -u)" = 0 ]; then echo setpriv --reuid "$1" --regid "$1" --init-groups; fi; }

# owned NAME USER: its folder, with folders data and tmp that the user owns and can get to.
owned() {
  mkdir -p "$dir/$1/data" "$dir/$1/tmp"
  chmod 700 "$dir/$1/data" "$dir/$1/tmp"
  [ "$(id -u)" = 0 ] || return 0
  chown "$2:" "$dir/$1/data" "$dir/$1/tmp"
  (as "$2" test -w "$dir/$1/data") ||
    die "$1: it runs as the user $2, who cannot get to $dir/$1/data; set IDEMQ_SERVICES_DIR to a folder that he can reach"
}

# made NAME COMMAND…: makes the server's files; what an interrupted run left was removed before.
made() {
  local name=$1; shift
  (cd "$dir/$name/data" && "$@") >"$dir/$name/log" 2>&1 </dev/null 9>&- && touch "$dir/$name/made" && return
  tail -n 40 "$dir/$name/log" >&2
  die "$name: its data folder could not be made"
}

# --- PostgreSQL

install_postgres() {
  [ -n "$(postgres_bin)" ] || apt_install postgresql postgres # which is on nobody's path
  [ -n "$(postgres_bin)" ] || die "postgres: there is no /usr/lib/postgresql/*/bin/postgres"
}

# The newest one; Debian keeps each in a folder of its own.
postgres_bin() {
  local newest
  newest=$(printf '%s\n' /usr/lib/postgresql/*/bin/postgres | sort -V | tail -n 1)
  [ ! -x "$newest" ] || dirname "$newest"
}

postgres_answers() {
  [ "$(PGPASSWORD=idemq PGCONNECT_TIMEOUT=2 timeout 5 "$(postgres_bin)/psql" -XAtw -h 127.0.0.1 -p "$postgres_port" \
    -U idemq -c 'SELECT 1' idemq 2>/dev/null)" = 1 ]
}

answers_postgres() { alive postgres && postgres_answers; }

# The user and the database are made by the server before it listens; it takes a line a command.
make_postgres() {
  (as postgres "$1/initdb" -D "$dir/postgres/data" -U postgres -E UTF8 --locale=C.UTF-8 \
    --auth-local=trust --auth-host=scram-sha-256) || return
  printf '%s\n' "CREATE ROLE idemq LOGIN PASSWORD 'idemq'" 'CREATE DATABASE idemq OWNER idemq' |
    (as postgres "$1/postgres" --single -D "$dir/postgres/data" -c exit_on_error=on postgres)
}

# A server that was killed and is not buried yet would keep the next one from its folder.
postgres_buried() {
  local pid
  pid=$(head -n 1 "$dir/postgres/data/postmaster.pid" 2>/dev/null) || return 0
  [ ! -d "/proc/$pid" ]
}

start_postgres() {
  local bin
  bin=$(postgres_bin)
  if dead postgres; then
    port_free postgres "$postgres_port" IDEMQ_POSTGRES_PORT
    [ -e "$dir/postgres/made" ] || rm -rf "$dir/postgres/data"
    await 10 postgres_buried || true # if not, it says so itself
    owned postgres postgres
    [ -e "$dir/postgres/made" ] || made postgres make_postgres "$bin"
    # shellcheck disable=SC2046 # words
    launch postgres $(as_shown postgres) "$bin/postgres" -D "$dir/postgres/data" -p "$postgres_port" \
      -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c max_connections=300 -c max_wal_size=256MB \
      -c timezone=UTC -c log_timezone=UTC
  fi
  ready postgres 60 postgres_answers
}

# --- MariaDB, for MySQL

mariadbd=/usr/sbin/mariadbd # on the path of root only

install_mysql() { apt_install mariadb-server "$mariadbd"; }

mysql_answers() {
  [ "$(MYSQL_PWD=idemq timeout 5 mariadb --no-defaults --protocol=tcp --connect-timeout=2 -h 127.0.0.1 -P "$mysql_port" \
    -u idemq -N -B -e 'SELECT 1' idemq 2>/dev/null)" = 1 ]
}

answers_mysql() { alive mysql && mysql_answers; }

make_mysql() {
  (as mysql mariadb-install-db --no-defaults --datadir="$dir/mysql/data" --tmpdir="$dir/mysql/tmp" --skip-test-db --auth-root-authentication-method=socket)
}

# The server reads this file before it listens, each time.
mysql_init() {
  cat <<'SQL'
CREATE DATABASE IF NOT EXISTS idemq CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS 'idemq'@'%' IDENTIFIED BY 'idemq';
GRANT ALL ON idemq.* TO 'idemq'@'%';
SQL
}

# Its socket stands in its data folder, by a name relative to that: a long one would not fit. A
# server that starts removes the temporary tables it finds, so that no two may share a folder.
start_mysql() {
  if dead mysql; then
    port_free mysql "$mysql_port" IDEMQ_MYSQL_PORT
    [ -e "$dir/mysql/made" ] || rm -rf "$dir/mysql/data"
    owned mysql mysql
    [ -e "$dir/mysql/made" ] || made mysql make_mysql
    mysql_init >"$dir/mysql/init.sql"
    # shellcheck disable=SC2046 # words
    TZ=UTC launch mysql $(as_shown mysql) "$mariadbd" --no-defaults --datadir="$dir/mysql/data" --port="$mysql_port" \
      --tmpdir="$dir/mysql/tmp" --bind-address=127.0.0.1 --socket=socket --pid-file=pid --skip-name-resolve --init-file="$dir/mysql/init.sql" \
      --character-set-server=utf8mb4 --default-time-zone=+00:00 --max-connections=300 --innodb-buffer-pool-size=256M
  fi
  ready mysql 60 mysql_answers
}
