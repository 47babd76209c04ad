#!/usr/bin/env bash
# Drives `pelton serve` with the real openai client: tests/e2e/run.sh [PELTON [MODEL]].
#
# PELTON is the binary (default: target/release/pelton), MODEL a model (default: the embedded one).
# The client is installed once into target/e2e-venv, or taken from $E2E_PYTHON if that is set.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
pelton="${1:-$root/target/release/pelton}"

if [[ -n "${E2E_PYTHON:-}" ]]; then
    python="$E2E_PYTHON"
else
    venv="$root/target/e2e-venv"
    python="$venv/bin/python"
    if ! cmp -s "$here/requirements.txt" "$venv/installed.txt"; then
        mkdir -p "$root/target"
        python3 -m venv "$venv"
        "$python" -m pip install --quiet --disable-pip-version-check -r "$here/requirements.txt"
        cp "$here/requirements.txt" "$venv/installed.txt"
    fi
fi

exec "$python" "$here/openai_client.py" "$pelton" "${@:2}"
