#!/usr/bin/env bash
# Drives `pelton serve` with the real openai and anthropic clients: tests/e2e/run.sh [PELTON [MODEL]].
#
# PELTON is the binary (default: target/release/pelton), MODEL a model (default: the embedded one).
# The clients are installed once into target/e2e-venv, or taken from $E2E_PYTHON if that is set.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
pelton="${1:-$root/target/release/pelton}"

if [[ -n "${E2E_PYTHON:-}" ]]; then
    python="$E2E_PYTHON"
else
    venv="$root/target/e2e-venv"
    python="$venv/bin/python"
    if ! cat "$here"/requirements*.txt | cmp -s - "$venv/installed.txt"; then
        mkdir -p "$root/target"
        python3 -m venv "$venv"
        "$python" -m pip install --quiet --disable-pip-version-check \
            -r "$here/requirements.txt" -r "$here/requirements-page.txt"
        cat "$here"/requirements*.txt > "$venv/installed.txt"
    fi
fi

"$python" "$here/openai_client.py" "$pelton" "${@:2}"
if [[ $# -lt 2 ]]; then
    "$python" "$here/batches.py" "$pelton"
    "$python" "$here/openapi.py" "$pelton"
    # Says so and ends well where there is no Chromium.
    "$python" "$here/page.py" "$pelton"
fi
