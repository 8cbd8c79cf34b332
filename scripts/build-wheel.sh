#!/usr/bin/env bash
# Builds a wheel into dist/, and installs it into .venv. Run bootstrap.sh first.
#
#   scripts/build-wheel.sh          the package, the bindings, the native `honeycomb` and the demo's text
#   scripts/build-wheel.sh bench    the native `honeycomb-bench`, which `honeycomb bench` runs

set -euo pipefail
source "$(dirname "$0")/lib.sh"

TARGET=${CARGO_TARGET_DIR:-target}
PROFILE=${PROFILE:-release} # or `fast`, to try a change
SCRIPTS=python/honeycomb_store.data/scripts # a wheel's folder for files of bin/
DATA=python/honeycomb/data

main() {
    case ${1:-} in
        "")
            build_binary
            cp examples/data/king-james-bible.txt.gz "$(fresh_folder "$DATA")"
            build_wheel store python
            ;;
        bench) build_wheel bench bench/suite ;;
        *) fail "usage: scripts/build-wheel.sh [bench]" ;;
    esac
}

# Deletes the folder's contents, so that no file of an older version is packed or installed. The folder
# itself stays: deleting it would change its parent's time, which the Makefile takes for a changed source.
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

# Uses the same target folder and profile as the binary, so that shared crates compile once.
build_wheel() {
    local name=honeycomb_$1 manifest=$2/Cargo.toml
    say "building the wheel ${name/_/-}"
    mkdir -p dist && rm -f dist/"$name"-*.whl
    PYO3_PYTHON=$PWD/.venv/bin/python .venv/bin/maturin build --profile "$PROFILE" --locked \
        --manifest-path "$manifest" --out dist
    .venv/bin/pip install --quiet --disable-pip-version-check --force-reinstall --no-deps \
        dist/"$name"-*.whl
    say "installed $(basename dist/"$name"-*.whl) into .venv"
}

main "$@"
