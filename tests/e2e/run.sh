#!/usr/bin/env bash
# Drives `pelton serve` with the real openai and anthropic clients: tests/e2e/run.sh [PELTON [MODEL]].
#
# PELTON is the binary (default: target/release/pelton), MODEL a model (default: the embedded one).
# The clients are installed once into target/e2e-venv (--install does only that), or taken from
# $E2E_PYTHON if that is set. Two tests need more, and print a NOTE where they cannot run: the one of
# SGLang's router a package that not every platform has, the one of the page Chromium.
# E2E_ROUTER=required and E2E_PAGE=required make that an error; the former is the default on Linux on
# x86-64.
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
root="$(cd "$here/../.." && pwd)"
only_install=
if [[ "${1-}" == --install ]]; then
    only_install=1
    shift
fi
pelton="${1:-$root/target/release/pelton}"
if [[ "$(uname -sm)" == "Linux x86_64" ]]; then
    export E2E_ROUTER="${E2E_ROUTER-required}"
fi

if [[ -n "${E2E_PYTHON:-}" ]]; then
    python="$E2E_PYTHON"
else
    venv="$root/target/e2e-venv"
    python="$venv/bin/python"
    if ! cat "$here"/requirements*.txt | cmp -s - "$venv/installed.txt"; then
        mkdir -p "$root/target"
        python3 -m venv "$venv"
        pip=("$python" -m pip install --quiet --disable-pip-version-check)
        "${pip[@]}" -r "$here/requirements.txt" -r "$here/requirements-page.txt" \
            -r "$here/requirements-harness.txt"
        # A build from source takes a Rust toolchain of its own. router.py says if this is missing.
        "${pip[@]}" --only-binary sglang-router -c "$here/requirements.txt" \
            -r "$here/requirements-router.txt" || [[ "${E2E_ROUTER-}" != required ]]
        cat "$here"/requirements*.txt > "$venv/installed.txt"
    fi
fi

if [[ -n "$only_install" ]]; then
    exit
fi

"$python" "$here/openai_client.py" "$pelton" "${@:2}"
if [[ $# -lt 2 ]]; then
    "$python" "$here/batches.py" "$pelton"
    "$python" "$here/openapi.py" "$pelton"
    "$python" "$here/router.py" "$pelton"
    "$python" "$here/page.py" "$pelton"
    "$python" "$here/harness.py" "$pelton"
fi
