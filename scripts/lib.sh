# Sourced by every script: the repository as working directory, and the few words they share.

cd "$(dirname "${BASH_SOURCE[0]}")/.."

# rustup's own folder comes first: a distribution's older cargo must not shadow it.
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
# A toolchain is installed by bootstrap.sh, where it is seen, and never on the side.
export RUSTUP_AUTO_INSTALL=0

say() { printf '== %s\n' "$*" >&2; }

fail() {
    printf 'error: %s\n' "$@" >&2
    exit 1
}

has() { command -v "$1" >/dev/null 2>&1; }
