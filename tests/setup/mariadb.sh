#!/usr/bin/env bash
# Runs a private MariaDB for tests: its own folder, its own port on the loopback, its own password.
#
# usage: tests/setup/mariadb.sh serve FOLDER     prints the DSN of a new server in FOLDER, and
#                                                stops and removes it when standard input ends
#        tests/setup/mariadb.sh restart FOLDER   starts that server again, also after a crash
#
# Takes the MariaDB that is there; where there is none, root gets the core of Debian's: its programs,
# without the service that the whole package would start for everybody. It should not run as root, so
# root hands FOLDER to `nobody`. Ends with 3 when there is no MariaDB. Standard output has the DSN and
# nothing else.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { echo "setup: $*" >&2; }

main() {
    if [ "$#" -ne 2 ]; then
        sed -n '4,6s/^# //p' "${BASH_SOURCE[0]}" >&2
        exit 2
    fi
    find_programs || { "$here/apt.sh" mariadb-server-core && find_programs; } || {
        say "no MariaDB. Install it (Debian, Ubuntu: apt-get install mariadb-server-core)"
        exit 3
    }
    folder=$2
    case "$1" in
        serve) serve ;;
        restart) start ;;
        *)
            say "there is no command '$1'"
            exit 2
            ;;
    esac
}

# Sets the server, and the folder with the statements that make its own tables.
find_programs() {
    local candidate
    for candidate in "$(command -v mariadbd)" /usr/sbin/mariadbd /usr/libexec/mariadbd; do
        share=$(dirname "$(dirname "$candidate")")/share
        if [ ! -d "$share/mysql" ]; then share=$share/mariadb; else share=$share/mysql; fi
        if [ -x "$candidate" ] && [ -r "$share/mysql_system_tables.sql" ]; then
            mariadbd=$candidate
            return
        fi
    done
    return 1
}

as_owner() {
    if [ "$(id -u)" -eq 0 ]; then
        setpriv --reuid nobody --regid nogroup --clear-groups -- "$@"
    else
        "$@"
    fi
}

serve() {
    # Whoever started us may be killed in any way; the end of its pipe reaches us in all of them.
    trap '' INT TERM HUP
    trap stop EXIT
    mkdir -p "$folder"
    if [ "$(id -u)" -eq 0 ]; then chown nobody "$folder"; fi
    cd "$folder"
    make_server
    start_on_a_free_port
    echo "mariadb://oncemq:$password@127.0.0.1:$port/test"
    exec >&-
    cat >/dev/null
}

make_server() {
    password=$(head -c 18 /dev/urandom | base64 | tr '/+' 'ab')
    # As durable as a real one, because what is lost after a kill is what tests look for.
    as_owner tee "$folder/my.cnf" >/dev/null <<END
[mariadbd]
datadir = $folder/data
socket = $folder/socket
pid_file = $folder/pid
tmpdir = $folder
bind_address = 127.0.0.1
skip_name_resolve
max_connections = 100
performance_schema = off
innodb_flush_log_at_trx_commit = 1
innodb_buffer_pool_size = 64M
innodb_log_file_size = 16M
END
    as_owner mkdir "$folder/data"
    # Not synced while it is made: a server that a power cut leaves half made is of no use anyway.
    {
        # One statement in a line: that is how it reads them.
        printf '%s;\n' "CREATE DATABASE mysql" "CREATE DATABASE test" "USE mysql" \
            "SET @auth_root_socket = NULL"
        cat "$share/mysql_system_tables.sql" "$share/mysql_system_tables_data.sql"
        printf '%s;\n' "DELETE FROM global_priv" "FLUSH PRIVILEGES" \
            "CREATE USER oncemq@127.0.0.1 IDENTIFIED BY '$password'" \
            "GRANT ALL ON *.* TO oncemq@127.0.0.1 WITH GRANT OPTION"
    } | as_owner "$mariadbd" --defaults-file="$folder/my.cnf" --bootstrap --log-warnings=0 \
        --innodb-flush-log-at-trx-commit=0 --lc-messages-dir="$share" >>"$folder/log" 2>&1 || {
        cat "$folder/log" >&2
        say "MariaDB could not make its tables; its words are above"
        exit 1
    }
}

# Whoever looks for a free port first and takes it later may find it taken; so the server looks.
start_on_a_free_port() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        port=$((28000 + RANDOM % 4000))
        echo "port = $port" | as_owner tee -a "$folder/my.cnf" >/dev/null
        if start; then return; fi
    done
    cat "$folder/log" >&2
    say "MariaDB did not start; its words are above"
    exit 1
}

# The server runs, and answers.
start() {
    cd "$folder"
    rm -f "$folder/socket"
    port=$(sed -n 's/^port = //p' "$folder/my.cnf" | tail -n 1)
    as_owner setsid "$mariadbd" --defaults-file="$folder/my.cnf" --lc-messages-dir="$share" \
        </dev/null >>"$folder/log" 2>&1 &
    local server=$!
    # The port is its own when the socket is there; it answers when it has recovered.
    while kill -0 "$server" 2>/dev/null; do
        if [ -S "$folder/socket" ] && greets; then return; fi
        sleep 0.02
    done
    return 1
}

greets() { (exec 3<>"/dev/tcp/127.0.0.1/$port" && head -c 5 <&3 | grep -q .) 2>/dev/null; }

stop() {
    cd /
    if [ -s "$folder/pid" ]; then kill -KILL "$(cat "$folder/pid")" 2>/dev/null || true; fi
    rm -rf "$folder"
}

main "$@"
