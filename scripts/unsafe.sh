#!/usr/bin/env bash
# Tests the `unsafe` code of crates/block under Miri and AddressSanitizer: bounds, aliasing, races, leaks.
# Both need a nightly toolchain, which this project does not need otherwise and this script does not install.
# Miri supports neither memory files (`Shared`, `View`) nor `madvise`: those run only under the sanitizer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

skipped() {
	echo "==============================================================================" >&2
	echo "SKIPPED: the unsafe code of crates/block was NOT CHECKED by $1." >&2
	echo "         To check it: $2" >&2
	echo "==============================================================================" >&2
}

target=$(rustc -vV | sed -n 's/^host: //p')
install="rustup toolchain install nightly --profile minimal --component miri,rust-src"
if cargo +nightly miri --version >/dev/null 2>&1; then
	miri=(cargo +nightly miri test --quiet --locked -p honeycomb-block --target-dir target/miri)
	"${miri[@]}"
	# One order of the threads shows little: 47 of 48 orders missed a removed fence.
	MIRIFLAGS="-Zmiri-many-seeds=0..48 -Zmiri-preemption-rate=0.1" "${miri[@]}" -- another_thread
else
	skipped Miri "$install"
fi
if cargo +nightly --version >/dev/null 2>&1; then
	# The sanitizer's own allocator returns no memory, for which one test waits.
	RUSTFLAGS=-Zsanitizer=address cargo +nightly test --quiet --locked -p honeycomb-block \
		--target "$target" --target-dir target/asan -- --skip heap_memory_that_is_free
else
	skipped AddressSanitizer "$install"
fi
