#!/usr/bin/env bash
# Builds the wheel (the package, the bindings, the native `honeycomb` and the demo's text) into
# dist/, and installs it into .venv. Needs what bootstrap.sh installs.

set -euo pipefail
source "$(dirname "$0")/lib.sh"

TARGET=${CARGO_TARGET_DIR:-target}
PROFILE=${PROFILE:-release} # or `fast`, to try a change
SCRIPTS=python/honeycomb_store.data/scripts # a wheel's place for what goes into bin/
DATA=python/honeycomb/data

main() {
    build_binary
    cp examples/data/king-james-bible.txt.gz "$(fresh_folder "$DATA")"
    build_wheel
    install_wheel
}

# An older name or an older version must not stay behind and be packed or installed. The folder
# itself stays: its parent's time would change, which to the Makefile is a changed source.
fresh_folder() {
    mkdir -p "$1"
    rm -rf "${1:?}"/*
    echo "$1"
}

build_binary() {
    say "building the honeycomb binary"
    cargo build --profile "$PROFILE" --locked -p honeycomb
    strip -o "$(fresh_folder "$SCRIPTS")/honeycomb" "$TARGET/$PROFILE/honeycomb"
}

# The same target folder and profile as the binary's: the crates they share compile once.
build_wheel() {
    say "building the wheel"
    PYO3_PYTHON=$PWD/.venv/bin/python .venv/bin/maturin build --profile "$PROFILE" --locked \
        --manifest-path python/Cargo.toml --out "$(fresh_folder dist)"
}

install_wheel() {
    .venv/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps dist/*.whl
    say "installed $(basename dist/*.whl) into .venv"
}

main "$@"
