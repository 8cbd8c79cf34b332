#!/usr/bin/env bash
# What `unsafe` touches in crates/block, under Miri and under AddressSanitizer: bounds, aliasing, races,
# leaks. Both need a nightly toolchain, which nothing else here does and which is not installed for this.
# Miri knows no memory files (`Shared`, `View`) and no `madvise`: those run under the sanitizer alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

skipped() {
	echo "==============================================================================" >&2
	echo "SKIPPED: the unsafe code of crates/block was NOT CHECKED by $1." >&2
	echo "         To have it checked: $2" >&2
	echo "==============================================================================" >&2
}

target=$(rustc -vV | sed -n 's/^host: //p')
install="rustup toolchain install nightly --profile minimal --component miri,rust-src"
if cargo +nightly miri --version >/dev/null 2>&1; then
	miri=(cargo +nightly miri test --quiet --locked -p honeycomb-block --target-dir target/miri)
	"${miri[@]}"
	# One order of the threads shows little: a fence that was taken out was missed in 47 of 48.
	MIRIFLAGS="-Zmiri-many-seeds=0..48 -Zmiri-preemption-rate=0.1" "${miri[@]}" -- another_thread
else
	skipped Miri "$install"
fi
if cargo +nightly --version >/dev/null 2>&1; then
	RUSTFLAGS=-Zsanitizer=address cargo +nightly test --quiet --locked -p honeycomb-block \
		--target "$target" --target-dir target/asan
else
	skipped AddressSanitizer "$install"
fi
