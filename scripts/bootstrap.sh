#!/usr/bin/env bash
# Installs the missing requirements of a build: system packages, Rust, the environment .venv. It can be run
# repeatedly: it leaves existing installations unchanged, and asks no questions.
#
#   scripts/bootstrap.sh          the requirements of `make demo` and `make test`
#   scripts/bootstrap.sh bench    also the peers that `make bench` and `bench/compare` measure

set -euo pipefail
source "$(dirname "$0")/lib.sh"

REQUIREMENTS=python/requirements-dev.txt
INSTALLED=.stamps/requirements.txt # the requirements that were last installed into .venv
PEERS=bench/requirements.txt       # Python clients of the peers, for the same .venv
PEERS_INSTALLED=.stamps/peers.txt

main() {
    install_packages "$@"
    has_rust || install_rust
    has_environment || make_environment
    [[ ${1:-} != bench ]] || has_peers || install_peers
}

# --- system packages -------------------------------------------------------------------------

install_packages() {
    local packages
    packages=$(missing_packages "$@" | xargs)
    [[ -n $packages ]] || return 0
    if [[ $(id -u) != 0 ]] || ! has apt-get; then
        fail "system packages are missing: $packages" \
            "install them as root (apt-get install $packages), then run the same command again"
    fi
    say "installing system packages: $packages"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086 # a list of names
    apt-get install -qq -y --no-install-recommends $packages >/dev/null
}

missing_packages() {
    can_link || echo gcc libc6-dev
    find_python >/dev/null || echo python3 python3-venv
    has_rust || has curl || echo curl ca-certificates
    if [[ ${1:-} == bench ]]; then
        has redis-server || echo redis-server
        has memcached || echo memcached
        can_link hiredis || echo libhiredis-dev
        can_link rocksdb c || echo librocksdb-dev
    fi
}

# Whether a program links, with the given library if any, whose header has its name or the given one.
can_link() {
    { [[ -z ${1:-} ]] || echo "#include <$1/${2:-$1}.h>"; echo 'int main(void) { return 0; }'; } |
        cc -x c -o /dev/null - ${1:+-l"$1"} 2>/dev/null
}

# --- Rust ------------------------------------------------------------------------------------

channel() { sed -n 's/^channel *= *"\(.*\)"/\1/p' rust-toolchain.toml; }

# The pinned release, from any source, with its formatter and lints.
has_rust() {
    [[ $(rustc --version 2>/dev/null) == "rustc $(channel) "* ]] &&
        cargo fmt --version >/dev/null 2>&1 && cargo clippy --version >/dev/null 2>&1
}

install_rust() {
    has rustup || install_rustup
    say "installing Rust $(channel)"
    rustup toolchain install "$(channel)" --no-self-update \
        --profile minimal --component clippy --component rustfmt ||
        fail "rustup could not install Rust $(channel) (its error is above)" \
            "behind a mirror, set RUSTUP_DIST_SERVER to it"
    has_rust || fail "Rust $(channel) is installed, but $(command -v rustc) is not it; check PATH"
}

install_rustup() {
    local installer=https://sh.rustup.rs
    [[ -z ${RUSTUP_UPDATE_ROOT:-} ]] || installer=$RUSTUP_UPDATE_ROOT/rustup-init.sh
    say "installing rustup from $installer"
    curl --proto '=https' --tlsv1.2 -sSf --retry 3 "$installer" |
        sh -s -- -q -y --no-modify-path --default-toolchain none ||
        fail "cannot install rustup from $installer (the error is above)" \
            "install rustup by hand, or set RUSTUP_UPDATE_ROOT to a mirror's rustup folder"
}

# --- Python ----------------------------------------------------------------------------------

# The first Python of version 3.11 or later that can make an environment with pip.
find_python() {
    local python
    for python in python3 python3.11 python3.12 python3.13 python3.14; do
        if "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' \
            2>/dev/null; then
            echo "$python"
            return
        fi
    done
    return 1
}

has_environment() {
    .venv/bin/python -c 'import pip' 2>/dev/null && cmp -s "$REQUIREMENTS" "$INSTALLED"
}

make_environment() {
    local python
    python=$(find_python) || fail "found no Python of version 3.11 or later; install one, with venv"
    if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
        say "making .venv with $("$python" --version)"
        rm -rf .venv .stamps # .stamps records the contents of .venv
        "$python" -m venv .venv
    fi
    say "installing $REQUIREMENTS into .venv"
    .venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r "$REQUIREMENTS"
    mkdir -p .stamps
    cp "$REQUIREMENTS" "$INSTALLED"
}

has_peers() { cmp -s "$PEERS" "$PEERS_INSTALLED"; }

install_peers() {
    say "installing $PEERS into .venv"
    .venv/bin/pip install --quiet --disable-pip-version-check --require-hashes -r "$PEERS"
    cp "$PEERS" "$PEERS_INSTALLED"
}

main "$@"
