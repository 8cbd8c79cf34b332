#!/usr/bin/env bash
# Runs rings of tests one after the other, up to the first that fails, and prints the time of each.
#
#   scripts/rings.sh lint unit 'simulate SECONDS=10'    each argument is a target of the Makefile, with variables

set -euo pipefail
source "$(dirname "$0")/lib.sh"

report=()

print_report() {
    printf '%s\n' '' "${report[@]}" "all rings: $SECONDS s" >&2
}

main() {
    local ring begin
    trap print_report EXIT
    for ring in "$@"; do
        begin=$SECONDS
        # shellcheck disable=SC2086 # a target and its variables
        if ! make $ring; then
            report+=("$ring: FAILED after $((SECONDS - begin)) s")
            fail "the ring failed: $ring" "run it alone with: make $ring"
        fi
        report+=("$ring: $((SECONDS - begin)) s")
    done
}

main "$@"
