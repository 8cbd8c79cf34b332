#!/usr/bin/env bash
# Makes examples/data/king-james-bible.txt.gz again from Debian's packages bible-kjv-text (the text)
# and bible-kjv (the program that unpacks it). The result is byte-identical each time.

set -euo pipefail
source "$(dirname "$0")/lib.sh"

TEXT=$PWD/examples/data/king-james-bible.txt.gz
PACKAGES=(bible-kjv-text bible-kjv)
LINES=31102 # verses

main() {
    has apt-get || fail "apt-get is missing; it is needed to download ${PACKAGES[*]}"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    apt-get download -qq "${PACKAGES[@]}" 2>/dev/null ||
        fail "apt-get cannot download ${PACKAGES[*]}; run apt-get update first"
    local package
    for package in *.deb; do dpkg-deb -x "$package" .; done
    verses >text
    [[ $(wc -l <text) == "$LINES" ]] || fail "expected $LINES verses, got $(wc -l <text)"
    gzip -n9 <text >"$TEXT"
    sha256sum text "$TEXT"
}

# One verse per line, without its reference ("Ge1:1 "), so that every word is a word of the text.
verses() {
    (cd usr/lib && LC_ALL=C ../bin/bible -f 'Gen1:1-Rev22:21' </dev/null) | sed 's/^[^ ]*:[0-9]* //'
}

main
