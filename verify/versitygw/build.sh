#!/usr/bin/env bash
# Builds versitygw, a real S3 server, for the tests: .peers/versitygw-VERSION. Where there is no Go
# for it the tests that need it are skipped, and that is said. With NEEDS_S3=1 it is a failure instead.
#
#   verify/versitygw/build.sh            builds it, if it is not there
#   verify/versitygw/build.sh --remind   says what was skipped, if it is not there
set -euo pipefail
cd "$(dirname "$0")/../.."
version=$(sed -n 's|.*github.com/versity/versitygw v\([0-9.]*\).*|\1|p' verify/versitygw/go.mod)
built=.peers/versitygw-$version

skip() {
	echo "==============================================================================" >&2
	echo "SKIPPED: the tests against a real S3 server DO NOT RUN: $1" >&2
	echo "         Flushes are tested with directories only. Install Go 1.25 or later and run" >&2
	echo "         \`make test\` again to have the rest." >&2
	echo "==============================================================================" >&2
	[ "${NEEDS_S3:-}" != 1 ] || exit 1
	exit 0
}

[ ! -x "$built" ] || exit 0
[ "${1:-}" != --remind ] || skip "versitygw was not built"
command -v go >/dev/null || skip "there is no Go here"
go=$(go env GOVERSION | sed 's/^go//')
if [ "$(printf '%s\n' 1.25 "$go" | sort -V | head -1)" != 1.25 ]; then
	skip "Go $go is too old"
fi
mkdir -p .peers
# The modules come from the proxy once; go.sum says which bytes they have.
export GOFLAGS=-mod=readonly GOTOOLCHAIN=local
echo "building versitygw $version, once: a minute or two" >&2
(cd verify/versitygw && go mod download) || skip "its modules cannot be had"
(cd verify/versitygw && go build -trimpath -ldflags '-s -w' -o "../../$built.part" \
	github.com/versity/versitygw/cmd/versitygw)
mv "$built.part" "$built"
