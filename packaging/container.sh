#!/usr/bin/env bash
# Builds the image of packaging/Containerfile and tries it:
#
#   packaging/container.sh                    with podman, buildah or docker
#   packaging/container.sh --stages BINARY    without: its last stage by hand, around this binary
#   packaging/container.sh --builder          which of them works here
#
# The second form lays the files of the last stage into an empty folder, with the libraries that the
# base image has, and runs the program in it as its root: no shell, no other library, no network.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=$PATH:/usr/sbin:/sbin

fail() {
    echo "error: $*" >&2
    exit 1
}

with_builder() {
    local builder=$1 image=pelton-try
    "$builder" build -t "$image" -f packaging/Containerfile .
    case "$builder" in
    buildah) echo "built; buildah runs no image, so it is not tried" ;;
    *)
        "$builder" run --rm "$image" --version
        "$builder" run --rm --entrypoint /usr/local/bin/pelton "$image" run "Once" -n 8 -q
        ;;
    esac
}

# What gcr.io/distroless/cc-debian12 has of what a program links to.
allowed='^(linux-vdso|libgcc_s|libm|libc|libdl|libpthread|librt|libstdc\+\+|ld-linux)[-.]'

by_hand() {
    local binary=$1 root library
    [ -x "$binary" ] || fail "$binary is no program; \`cargo build --release\` makes target/release/pelton"
    [ "$(id -u)" = 0 ] || unshare --user --map-root-user true 2>/dev/null ||
        fail "changing the root folder needs root or user namespaces"
    root=$(mktemp -d)
    # shellcheck disable=SC2064
    trap "rm -rf '$root'" EXIT
    while read -r library; do
        [[ "$(basename "$library")" =~ $allowed ]] || fail "$library is not in the base image"
        [ -e "$library" ] || continue
        install -D "$library" "$root$library"
    done < <(ldd "$binary" | sed -nE 's/^\s*(\S+ => )?(\S+) \(0x.*/\2/p')
    # The COPY lines of the last stage.
    install -D "$binary" "$root/usr/local/bin/pelton"
    install -D -m 644 -t "$root/usr/share/doc/pelton" LICENSE-APACHE LICENSE-MIT
    mkdir -p "$root/home/nonroot/.cache"
    local inside=(env -i HOME=/home/nonroot)
    [ "$(id -u)" = 0 ] || inside+=("$(command -v unshare)" --user --map-root-user)
    inside+=("$(command -v chroot)" "$root" /usr/local/bin/pelton)
    "${inside[@]}" --version
    "${inside[@]}" run "Once upon a time" --raw -n 8 -q
    # The words of CMD, and the check of HEALTHCHECK against them.
    "${inside[@]}" serve --host 127.0.0.1 --port 0 2>"$root/log" &
    local server=$! tries=0 address=
    until [ -n "$address" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 300 ] || fail "the server does not listen: $(cat "$root/log")"
        sleep 0.1
        address=$(sed -nE 's/^listening on (http:\S+)$/\1/p' "$root/log")
    done
    "${inside[@]}" top --once "$address" >/dev/null
    kill -TERM "$server"
    wait "$server" || fail "the server did not end well: $(cat "$root/log")"
    echo "the last stage by hand: version, text, service and health check work"
}

# The first builder that works here.
builder() {
    local name
    for name in podman docker buildah; do
        if command -v "$name" >/dev/null 2>&1 && "$name" info >/dev/null 2>&1; then
            echo "$name"
            return
        fi
    done
    return 1
}

case "${1-}" in
--stages) by_hand "${2:?the path of the binary}" ;;
--builder) builder ;;
"")
    name=$(builder) || fail "there is no podman, docker or buildah; --stages BINARY tries the last stage without"
    with_builder "$name"
    ;;
*) fail "unknown argument \`$1\`" ;;
esac
