#!/usr/bin/env bash
# Install headrace into a throwaway environment of every Python it supports that is there, and run
# the client's unit tests and a smoke test. `make pythons` calls it.
#
#   tools/check_pythons.sh [VERSION...]      for example: tools/check_pythons.sh 3.12 3.13
#
# HEADRACE_PURE=1 leaves compiling out. The tree itself is not touched: a copy is built.
set -euo pipefail
cd "$(dirname "$0")/.."

versions=("$@")
[ ${#versions[@]} -gt 0 ] || versions=(3.11 3.12 3.13 3.14)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# An interpreter on the path that runs (a shim of pyenv may not), or one that pyenv keeps.
find_python() {
    local candidate
    for candidate in "python$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1".*/bin/python; do
        if command -v "$candidate" >/dev/null && "$candidate" -c 'import ensurepip, venv' 2>/dev/null
        then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

# With the pinned versions, or where one of them has no wheel for this Python, with what has one.
install() {
    local python=$1
    shift
    "$python" -m pip --disable-pip-version-check install --quiet --only-binary :all: \
        -c constraints.txt "$@" 2>"$work/pip.log" ||
        "$python" -m pip --disable-pip-version-check install --quiet --only-binary :all: "$@"
}

check() {
    local version=$1 python=$2 place="$work/$1"
    mkdir "$place"
    cp -r setup.py pyproject.toml constraints.txt README.md LICENSE src tests tools docs "$place"
    # What another Python compiled.
    find "$place/src" \( -name '*.so' -o -name '*.c' -o -name '*.egg-info' \) -prune -exec rm -rf {} +
    "$python" -m venv "$place/venv"
    python="$place/venv/bin/python"
    cd "$place"
    install "$python" setuptools Cython pytest pytest-timeout pytest-xdist hypothesis \
        prometheus-client pyarrow click cramjam fastcrc rich uvloop
    "$python" -m pip --disable-pip-version-check install --quiet --no-build-isolation --no-deps .
    # Imported from where it was installed, as a user has it.
    rm -rf src
    "$python" -c 'import headrace.protocol.records as r; print("codec:", r.__file__.rsplit(".", 1)[1])'
    "$python" -m pytest -q -p no:cacheprovider tests/unit/client tests/unit/test_public_names.py
    PATH="$place/venv/bin:$PATH" "$python" tools/smoke.py
}

ran=() missing=() failed=()
for version in "${versions[@]}"; do
    if ! python=$(find_python "$version"); then
        missing+=("$version")
        continue
    fi
    echo "==> Python $version: $("$python" --version)"
    # A subshell for `cd` and errexit; `if` would switch the latter off inside.
    set +e
    (set -e; check "$version" "$python")
    status=$?
    set -e
    if [ $status -eq 0 ]; then ran+=("$version"); else failed+=("$version"); fi
done

echo "==> passed: ${ran[*]:-none}; failed: ${failed[*]:-none}; not installed here: ${missing[*]:-none}"
[ ${#failed[@]} -eq 0 ] && [ ${#ran[@]} -gt 0 ]
