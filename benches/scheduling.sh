#!/usr/bin/env bash
# What the parts of the scheduler bring, measured on the real engine: each pair of runs serves the
# same requests with a part on and off.
#
#     bash benches/scheduling.sh target/release/pelton MODEL.gguf
#
# Takes about ten minutes on two cores with the 0.5B shape of `cargo xtask bench-model`.
set -euo pipefail
pelton="$1"
model="$2"
traces="$(dirname "$0")/traces"

serve() {
    printf '\n=== %s\n' "$*"
    "$pelton" bench load -m "$model" --trace "$traces/$1.txt" "${@:2}"
}

# A prefix of 1,500 tokens: computed once, or every time.
serve chats --concurrency 1 -n 20
serve chats --concurrency 1 -n 6 --no-prefix-cache

# Short chats: alone, beside a long prompt with targets, and without.
serve short --policy sla --max-context 8192
serve mixed --policy sla --max-context 8192
serve mixed-without-targets --policy fcfs --max-context 8192

# 16 requests at once in a pool that holds all, and in one that holds half of them.
serve full --concurrency 16 --max-context 1024
serve full --concurrency 16 --max-context 1024 --kv-memory 28MiB
serve full --concurrency 16 --max-context 1024 --kv-memory 28MiB --swap-memory 64MiB

# Lengths with a long tail: requests join at every step, or in batches.
tail_limits=(--max-running 16 --kv-memory 64MiB --max-context 1024)
serve long-tail "${tail_limits[@]}"
serve long-tail "${tail_limits[@]}" --batching static --kv-allocation contiguous

# Two tenants with equal weights.
serve tenants --policy fair --max-running 8 --max-context 1024
