#!/usr/bin/env bash
# Makes examples/data/king-james-bible.txt.gz anew from Debian's packages bible-kjv-text (the text)
# and bible-kjv (the program that unpacks it). The result is the same byte for byte each time.

set -euo pipefail
source "$(dirname "$0")/lib.sh"

TEXT=$PWD/examples/data/king-james-bible.txt.gz
PACKAGES=(bible-kjv-text bible-kjv)
LINES=31102 # verses

main() {
    has apt-get || fail "this needs apt-get, to fetch ${PACKAGES[*]}"
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$work"
    apt-get download -qq "${PACKAGES[@]}" 2>/dev/null ||
        fail "apt-get found no ${PACKAGES[*]}; run apt-get update first"
    local package
    for package in *.deb; do dpkg-deb -x "$package" .; done
    verses >text
    [[ $(wc -l <text) == "$LINES" ]] || fail "expected $LINES verses, got $(wc -l <text)"
    gzip -n9 <text >"$TEXT"
    sha256sum text "$TEXT"
}

# One verse a line; its reference ("Ge1:1 ") is cut off, so that every word is a word of the text.
verses() {
    (cd usr/lib && LC_ALL=C ../bin/bible -f 'Gen1:1-Rev22:21' </dev/null) | sed 's/^[^ ]*:[0-9]* //'
}

main
