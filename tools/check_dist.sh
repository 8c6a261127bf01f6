#!/usr/bin/env bash
# Build dist/*.tar.gz and, from what is in it, dist/*.whl; install the wheel into an empty
# environment, as a user would, and run the smoke test there. `make dist` calls it, after it has built
# the documentation, which both carry.
#
#   tools/check_dist.sh [PYTHON]      with `build`, setuptools and Cython in it; .venv's by default
#
# HEADRACE_PURE=1 leaves compiling out.
set -euo pipefail
cd "$(dirname "$0")/.."
# The environment must find the package that is installed in it, not this tree.
unset PYTHONPATH

python=${1:-.venv/bin/python}
log=build/dist.log
environment=build/dist-venv

mkdir -p build
rm -rf dist "$environment"
echo "==> building sdist and wheel"
# Without isolation: by the pinned setuptools and Cython.
if ! "$python" -m build --no-isolation --outdir dist . >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    echo "building failed; see $log" >&2
    exit 1
fi
du -h dist/*

echo "==> trying the wheel in an empty environment"
"$python" -m venv "$environment"
"$environment/bin/python" -m pip --disable-pip-version-check install --quiet -c constraints.txt dist/*.whl
HEADRACE_EXPECT_BUILD=$("$python" tools/codec_build.py expected) \
    "$environment/bin/python" tools/smoke.py --documentation
rm -rf "$environment"
