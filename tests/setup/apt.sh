#!/usr/bin/env bash
# Installs Debian packages, or says which ones are missing where only somebody else may install them.
#
# usage: tests/setup/apt.sh PACKAGE...
#
# Ends with 0 when the packages are there and with 1 when they are not. Speaks on standard error, so
# that the output of a script that calls it stays its own.
set -euo pipefail

say() { echo "setup: $*" >&2; }

main() {
    if ! command -v apt-get >/dev/null; then
        say "missing: $* (names of Debian packages; this machine has no apt-get)"
        return 1
    fi
    if [ "$(id -u)" -ne 0 ]; then
        say "missing: $* (only root may install it: apt-get install $*)"
        return 1
    fi
    say "installing $* with apt-get"
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    # A fresh container has no package lists and an old machine has stale ones. Where the lists are
    # good, fetching them again would be most of the waiting.
    install "$@" || { update && install "$@"; } || {
        cat "$log" >&2
        say "apt-get could not install $*; its words are above"
        return 1
    }
}

update() { apt-get update --quiet >>"$log" 2>&1; }

install() {
    # Another apt-get may be at work, as on a machine that has just started; wait for it.
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet --no-install-recommends \
        --option DPkg::Lock::Timeout=120 "$@" >>"$log" 2>&1
}

main "$@"
