#!/usr/bin/env bash
# Builds the virtual environment that every target of the Makefile runs in.
#
# usage: tests/setup/venv.sh VENV STAMP EXTRAS     (from the root folder; PYTHON names an interpreter)
#
# Where none is named, the distribution's own is the first choice: it is built with all optimisations,
# and one that a version manager has compiled often takes a third longer for the same work.
#
# Afterwards VENV holds exactly what pyproject.toml asks for with EXTRAS, and STAMP, a file in it,
# says so. The environment is built anew rather than updated, so that nothing old lingers in it.
set -euo pipefail

here=$(dirname "${BASH_SOURCE[0]}")
venv=$1 stamp=$2 extras=$3
distribution=${DISTRIBUTION_PYTHON:-/usr/bin/python3}

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

# An interpreter counts only if it runs, since version managers put names on the path that do not, and
# if it can make environments, perhaps after something was installed.
choose_python() {
    local candidates=("$distribution" python3.13 python3.12 python3.11 python3) found=""
    if [ -n "${PYTHON:-}" ]; then candidates=("$PYTHON"); fi
    for python in "${candidates[@]}"; do
        if is_new_enough; then
            found=$python
            if has_ensurepip || install_ensurepip; then return; fi
        fi
    done
    if [ -n "$found" ]; then give_up "$found cannot make virtual environments without ensurepip"; fi
    give_up "Python 3.11 or newer is needed, and none of these is: ${candidates[*]}." \
        "Install one (Debian 12 or newer, Ubuntu 24.04 or newer: apt-get install python3 python3-venv)" \
        "or name one: make PYTHON=/path/to/python3"
}

is_new_enough() { "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

has_ensurepip() { "$python" -c 'import ensurepip' 2>/dev/null; }

# Debian ships this part of Python's own library as a package of its own.
install_ensurepip() {
    local version
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$here/apt.sh" "python$version-venv"
}

main
