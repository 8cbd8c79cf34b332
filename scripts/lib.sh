# Sourced by every script: changes to the repository's root, and defines shared functions.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# rustup's folder is first in PATH, so that a distribution's older cargo does not shadow it.
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
# Only bootstrap.sh installs a toolchain, visibly; rustup must not install one by itself.
export RUSTUP_AUTO_INSTALL=0

say() { printf '== %s\n' "$*" >&2; }

fail() {
    printf 'error: %s\n' "$@" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }
