#!/usr/bin/env bash
# Cross-checks our search for an order of a key's operations with porcupine, on histories of the
# simulator and on the same with one answer changed. Usage: verify/porcupine/check.sh [COUNT]
set -euo pipefail
cd "$(dirname "$0")/../.."
count=${1:-5000}

skip() {
	echo "==============================================================================" >&2
	echo "SKIPPED: the cross-check with porcupine DID NOT RUN: $1" >&2
	echo "         Our checker of histories stands alone in this run. Install Go 1.21 or later" >&2
	echo "         to have the second referee." >&2
	echo "==============================================================================" >&2
	exit 0
}

command -v go >/dev/null || skip "there is no Go here"
version=$(go env GOVERSION | sed 's/^go//')
if [ "$(printf '%s\n' 1.21 "$version" | sort -V | head -1)" != 1.21 ]; then
	skip "Go $version is too old"
fi
# The module comes from the proxy once; go.sum says which bytes it has.
(cd verify/porcupine && GOFLAGS=-mod=readonly go mod download) || skip "its module cannot be had"
(cd verify/porcupine && GOFLAGS=-mod=readonly GOTOOLCHAIN=local go build -o ../../target/porcupine .)
cargo build --quiet --profile fast --locked --workspace --exclude honeycomb-python --bin simulate
target/fast/simulate --histories "$count" | target/porcupine
