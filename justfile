# The habits of the house. `just` alone lists them.

default:
    @just --list --unsorted

# Format, lint and type-check
check:
    cargo fmt --all --check
    cargo clippy --workspace --all-targets -- -D warnings

# Every test
test:
    cargo test --workspace

# The kernel tests with one instruction set forced: scalar, avx2 or avx512
test-kernels isa:
    PELTON_KERNELS={{isa}} cargo test -p pelton-kernels -p pelton-quant -p pelton-model

# The tests of the crates with unsafe code under AddressSanitizer; `rustup toolchain install nightly` once
asan:
    RUSTFLAGS=-Zsanitizer=address cargo +nightly test --target x86_64-unknown-linux-gnu \
        -p pelton-kernels -p pelton-tensor --tests

# The real binary against the real openai client
e2e:
    cargo build --release
    tests/e2e/run.sh target/release/pelton

# One sentence of a story, with statistics
demo:
    cargo run --release -- run "Once upon a time" --bandwidth

# The speed of a model, next to the limits of the machine
bench model:
    cargo run --release -- bench model -m {{model}}

# Pelton and its peers on one GGUF file; their packages come from benches/peers/requirements.txt
peers model:
    cargo build --release
    python3 benches/peers/compare.py {{model}}

# The documentation, as strict as CI builds it
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# Licences, advisories, duplicates
deny:
    cargo deny check

# Everything CI does
ci:
    .ci/run
