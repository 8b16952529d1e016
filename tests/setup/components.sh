#!/usr/bin/env bash
# Brings the programs that some tests need and that pip cannot install.
#
# usage: tests/setup/components.sh COMPONENT...
#
# Installs what is absent when root, and otherwise says what is missing and goes on: the tests that
# need it are skipped on a person's machine and fail where CI=true (tests/conftest.py).
set -euo pipefail

here=$(dirname "${BASH_SOURCE[0]}")

main() {
    local component missing=()
    for component in "$@"; do
        describe "$component"
        command -v "$program" >/dev/null || missing+=("$package")
    done
    if [ "${#missing[@]}" -gt 0 ]; then
        "$here/apt.sh" "${missing[@]}" || echo "setup: going on without ${missing[*]}" >&2
    fi
}

# Sets the program by which a component is recognised and the Debian package that brings it.
describe() {
    case "$1" in
        omniidl) program=omniidl package=omniidl ;;
        mkfs.ext4) program=mkfs.ext4 package=e2fsprogs ;;
        losetup | mount | umount) program=$1 package=mount ;;
        java) program=java package=default-jre-headless ;;
        *)
            echo "setup: no component is called '$1'; see ${BASH_SOURCE[0]}" >&2
            exit 2
            ;;
    esac
}

main "$@"
