#!/usr/bin/env bash
# Builds the Python package and runs its tests: crates/python/test.sh [release].
#
# Tools are installed once into target/python-venv. The build shares the artefacts of the binary's.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
profile="${1:-dev}"

venv="$root/target/python-venv"
if ! cmp -s "$here/requirements.txt" "$venv/installed.txt"; then
    mkdir -p "$root/target"
    python3 -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
    cp "$here/requirements.txt" "$venv/installed.txt"
fi

cd "$here"
VIRTUAL_ENV="$venv" "$venv/bin/maturin" develop --quiet --locked --profile "$profile"
PYTHONDONTWRITEBYTECODE=1 exec "$venv/bin/python" -m pytest -q -p no:cacheprovider
