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

# Every instruction set of this machine, for docs/performance.md
performance:
    cargo build --release
    cargo xtask performance

# Pelton and its peers on one GGUF file; their packages come from benches/peers/requirements.txt
peers model:
    cargo build --release
    python3 benches/peers/compare.py {{model}}

# The documentation, as strict as CI builds it
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

# The manual as a website in target/book; `cargo install mdbook` once
book:
    cargo run --release -- man --markdown > docs/reference.md
    mdbook build docs

# The Python package, built and tested in an environment of its own
python:
    crates/python/test.sh

# One wheel with the library and the command line in target/wheels; `pip install maturin` once
wheel:
    maturin build --profile dist --manifest-path crates/python/Cargo.toml

# Manual pages and completions for packages, in target/packaging
packaging binary="target/dist/pelton":
    mkdir -p target/packaging/man
    {{binary}} man target/packaging/man
    {{binary}} completions bash > target/packaging/pelton.bash
    {{binary}} completions zsh > target/packaging/pelton.zsh
    {{binary}} completions fish > target/packaging/pelton.fish

# The Debian package in target/debian; `cargo install cargo-deb` once
deb:
    cargo build --profile dist --package pelton-cli
    just packaging
    cargo deb --package pelton-cli --profile dist --no-build

# The picture of the README, from a real run
picture:
    cargo build --release
    python3 docs/picture.py target/release/pelton > docs/terminal.svg

# Licences, advisories, duplicates
deny:
    cargo deny check

# Everything CI does
ci:
    .ci/run
