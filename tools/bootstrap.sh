#!/usr/bin/env bash
# Make or refresh .venv with exactly the versions of constraints.txt. `make venv` calls it twice:
# bootstrap.sh tools       the environment, with what the codec is compiled by
# bootstrap.sh headrace    everything else
set -euo pipefail
cd "$(dirname "$0")/.."

recent_enough='import sys; sys.exit(sys.version_info < (3, 11))'
usable='import pip, sys; sys.exit(sys.version_info < (3, 11))'

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
        if command -v "$candidate" >/dev/null && "$candidate" -c "$recent_enough" 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    {
        echo "headrace needs Python 3.11 or newer; ${PYTHON:-python3} is" \
            "$("${PYTHON:-python3}" --version 2>/dev/null || echo "not there")."
        echo "On Debian or Ubuntu:  sudo apt install python3.11 python3.11-venv"
        echo "Or name an interpreter:  make venv PYTHON=/path/to/python3"
    } >&2
    return 1
}

# An environment whose interpreter was upgraded away or is too old is made anew.
make_environment() {
    if ! .venv/bin/python -c "$usable" 2>/dev/null; then
        python=$(find_python)
        if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
            version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
            {
                echo "$python cannot make virtual environments: its venv package is missing."
                echo "On Debian or Ubuntu:  sudo apt install python$version-venv"
            } >&2
            exit 1
        fi
        echo "==> making .venv with $("$python" --version)"
        "$python" -m venv --clear .venv
    fi
}

# Most modules are never imported here, and those that are get compiled then.
pip() {
    .venv/bin/python -m pip --disable-pip-version-check install --quiet --no-compile \
        -c constraints.txt "$@"
}

case ${1:-} in
tools)
    make_environment
    echo "==> installing build tools"
    pip setuptools Cython
    if .venv/bin/python tools/codec_build.py lacks-only-a-compiler; then
        echo "==> installing a C compiler, since there is none here (100 MB; HEADRACE_PURE=1 does without)"
        pip ziglang || echo "==> there is none for this machine: the codec stays plain Python" >&2
    fi
    ;;
headrace)
    echo "==> installing headrace and its dependencies (the first time takes a few minutes: Spark is large)"
    # The codec is compiled by another step, where a failure has a log of its own.
    HEADRACE_PURE=1 pip --no-build-isolation -e '.[dev]'
    ;;
*)
    echo "usage: $0 tools|headrace" >&2
    exit 2
    ;;
esac
