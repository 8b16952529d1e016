#!/usr/bin/env bash
# Brings the queues that the benchmarks compare with, and their Python clients.
#
# usage: benchmarks/peers/setup.sh VENV     (from the root folder)
#
# Root gets Debian's packages, without the services that they would start. Whoever is not root gets
# the Python clients alone, and the comparison goes on with the servers that are there. Says what is
# missing, and ends with 0: a peer that cannot be had is reported as absent.
set -euo pipefail

venv=$1
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
policy=/usr/sbin/policy-rc.d
kafka=4.1.1

# Program, or what Spark writes to PostgreSQL with, and package; they are where Debian puts them.
servers=(
    "/usr/bin/redis-server redis-server"
    "/usr/bin/beanstalkd beanstalkd"
    "/usr/lib/rabbitmq/bin/rabbitmq-server rabbitmq-server"
    "/usr/share/activemq/bin/activemq.jar activemq"
    "/usr/sbin/mariadbd mariadb-server-core"
    "/usr/share/java/postgresql.jar libpostgresql-jdbc-java"
)

main() {
    local entry missing=()
    for entry in "${servers[@]}"; do
        [ -e "${entry%% *}" ] || missing+=("${entry##* }")
    done
    if [ "${#missing[@]}" -gt 0 ]; then install_packages "${missing[@]}"; fi
    "$venv/bin/python" -c 'import confluent_kafka, greenstalk, nats, pika, redis, stomp' 2>/dev/null ||
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
            --editable "$root[bench]" >&2 ||
        echo "setup: some clients of the peers could not be installed" >&2
    [ -e "$venv/kafka/server" ] || bring_kafka || echo "setup: going on without Kafka" >&2
}

# The broker is in no package of Debian's: Maven Central has it, and its parts, as jars.
bring_kafka() {
    if ! command -v mvn >/dev/null || ! command -v java >/dev/null; then
        echo "setup: Kafka needs Java and Maven (Debian, Ubuntu: apt-get install maven)" >&2
        return 1
    fi
    echo "setup: fetching Kafka $kafka from Maven Central (about 45 MB)" >&2
    local work
    work=$(mktemp -d)
    cat >"$work/pom.xml" <<END
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>oncemq</groupId><artifactId>peers</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>$kafka</version>
  </dependency></dependencies>
</project>
END
    mkdir -p "$venv/kafka"
    local result=0
    mvn --quiet --batch-mode --file "$work/pom.xml" -Dmaven.repo.local="$work/repository" \
        dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$work/server" >&2 &&
        mv "$work/server" "$venv/kafka/server" || result=1
    rm -rf "$work"
    return "$result"
}

install_packages() {
    # The packages start their services, which nobody asked for, unless this file says no.
    if [ "$(id -u)" -eq 0 ] && [ ! -e "$policy" ]; then
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        trap 'rm -f "$policy"' EXIT
    fi
    "$root/tests/setup/apt.sh" "$@" || echo "setup: going on without $*" >&2
}

main
