#!/usr/bin/env bash
# Runs a private PostgreSQL for tests: its own folder, its own port on the loopback, its own password.
#
# usage: tests/setup/postgres.sh serve FOLDER     prints the DSN of a new cluster in FOLDER, and
#                                                 stops and removes it when standard input ends
#        tests/setup/postgres.sh restart FOLDER   starts that cluster again, also after a crash
#
# Takes the newest PostgreSQL that is there; where there is none, root gets Debian's. PostgreSQL does
# not run as root, so root hands FOLDER to the user `postgres` of the package. Ends with 3 when there
# is no PostgreSQL. Standard output has the DSN and nothing else.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { echo "setup: $*" >&2; }

main() {
    if [ "$#" -ne 2 ]; then
        sed -n '4,6s/^# //p' "${BASH_SOURCE[0]}" >&2
        exit 2
    fi
    find_programs || { install_from_debian && find_programs; } || {
        say "no PostgreSQL. Install it (Debian, Ubuntu: apt-get install postgresql)"
        exit 3
    }
    folder=$2
    case "$1" in
        serve) serve ;;
        restart) as_owner "$bin/pg_ctl" -D "$folder/data" -l "$folder/log" -w start >&2 ;;
        *)
            say "there is no command '$1'"
            exit 2
            ;;
    esac
}

# Debian keeps the programs of each version in a folder of their own and off the path.
find_programs() {
    local candidate
    for candidate in $(printf '%s\n' /usr/lib/postgresql/*/bin | sort --version-sort --reverse) \
        "$(dirname "$(command -v initdb || echo /none/initdb)")"; do
        if [ -x "$candidate/initdb" ] && [ -x "$candidate/pg_ctl" ]; then
            bin=$candidate
            return
        fi
    done
    return 1
}

install_from_debian() {
    "$here/apt.sh" postgresql-common || return 1
    # The package would start a cluster of its own for everybody on this machine. Nobody asked for it.
    sed -i -E 's/^#? *create_main_cluster.*/create_main_cluster = false/' \
        /etc/postgresql-common/createcluster.conf
    "$here/apt.sh" postgresql
}

as_owner() {
    if [ "$(id -u)" -eq 0 ]; then
        (cd / && setpriv --reuid postgres --regid postgres --init-groups -- "$@")
    else
        "$@"
    fi
}

serve() {
    # Whoever started us may be killed in any way; the end of its pipe reaches us in all of them.
    trap '' INT TERM HUP
    trap stop EXIT
    mkdir -p "$folder"
    if [ "$(id -u)" -eq 0 ]; then chown postgres "$folder"; fi
    make_cluster
    start_on_a_free_port
    echo "postgresql://oncemq:$password@127.0.0.1:$port/postgres"
    exec >&-
    cat >/dev/null
}

make_cluster() {
    password=$(head -c 18 /dev/urandom | base64 | tr '/+' 'ab')
    (umask 077 && as_owner tee "$folder/password" <<<"$password" >/dev/null)
    # Not synced while it is made: a cluster that a power cut leaves half made is of no use anyway.
    as_owner "$bin/initdb" -D "$folder/data" --username oncemq --pwfile "$folder/password" \
        --data-checksums --auth scram-sha-256 --encoding UTF8 --no-locale --no-sync >&2
    # As durable as a real one, because what is lost after a kill is what tests look for.
    as_owner tee -a "$folder/data/postgresql.conf" >/dev/null <<END
listen_addresses = '127.0.0.1'
unix_socket_directories = ''
fsync = on
synchronous_commit = on
full_page_writes = on
max_connections = 100
max_prepared_transactions = 64
shared_buffers = 128MB
END
}

# Whoever looks for a free port first and takes it later may find it taken; so the server looks.
start_on_a_free_port() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        port=$((28000 + RANDOM % 4000))
        echo "port = $port" | as_owner tee -a "$folder/data/postgresql.conf" >/dev/null
        if as_owner "$bin/pg_ctl" -D "$folder/data" -l "$folder/log" -w start >&2; then return; fi
    done
    cat "$folder/log" >&2
    say "PostgreSQL did not start; its words are above"
    exit 1
}

stop() {
    if [ -s "$folder/data/postmaster.pid" ]; then
        as_owner "$bin/pg_ctl" -D "$folder/data" -w stop -m immediate >&2 || true
    fi
    rm -rf "$folder"
}

main "$@"
