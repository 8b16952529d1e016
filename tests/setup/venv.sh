#!/usr/bin/env bash
# Builds the virtual environment that every target of the Makefile runs in.
#
# usage: tests/setup/venv.sh VENV STAMP EXTRAS     (from the root folder; PYTHON names an interpreter)
#
# Afterwards VENV holds exactly what pyproject.toml asks for with EXTRAS, and STAMP, a file in it,
# says so. The environment is built anew rather than updated, so that nothing old lingers in it.
set -euo pipefail

here=$(dirname "${BASH_SOURCE[0]}")
venv=$1 stamp=$2 extras=$3

say() { echo "setup: $*" >&2; }

give_up() {
    say "$@"
    exit 1
}

main() {
    # Two runs of make may want the environment at once: the second waits here and finds it ready.
    exec 9<pyproject.toml
    if command -v flock >/dev/null; then flock 9; fi
    if [ -e "$stamp" ]; then return; fi
    check_that_nothing_else_is_replaced
    choose_python
    provide_ensurepip
    say "building $venv with $("$python" --version) ($(command -v "$python")); this happens once"
    "$python" -m venv --clear "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile \
        --editable ".[$extras]" ||
        give_up "pip could not fill $venv; its words are above, and the next make tries again"
    # Pip would compile with one processor, which takes a third of its time. What some package ships
    # for another version of Python does not compile, and is never imported.
    "$venv/bin/python" -m compileall -qq -j 0 "$venv/lib" || true
    touch "$stamp"
}

# Building anew empties the folder first, which must never happen to a folder of another kind.
check_that_nothing_else_is_replaced() {
    if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
        give_up "$venv exists and is not a virtual environment; remove it or choose another VENV="
    fi
}

# An interpreter counts only if it runs: version managers put names on the path that do not.
choose_python() {
    local candidates=(python3.13 python3.12 python3.11 python3)
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
    for python in "${candidates[@]}"; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            return
        fi
    done
    give_up "Python 3.11 or newer is needed, and none of these is: ${candidates[*]}." \
        "Install one (Debian 12 or newer, Ubuntu 24.04 or newer: apt-get install python3 python3-venv)" \
        "or name one: make PYTHON=/path/to/python3"
}

# Debian ships this part of Python's own library as a package of its own.
provide_ensurepip() {
    if "$python" -c 'import ensurepip' 2>/dev/null; then return; fi
    local version
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$here/apt.sh" "python$version-venv" ||
        give_up "$python cannot make virtual environments without it"
}

main
