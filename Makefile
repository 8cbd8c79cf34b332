# The menu. `make` lists it. Each target sets up what it needs; a second run does only what changed.

MAKEFLAGS += --no-print-directory
SHELL := bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:

# rustup's folder first: bootstrap.sh may have only just filled it.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH)
export RUSTUP_AUTO_INSTALL := 0
export PYO3_PYTHON := $(CURDIR)/.venv/bin/python

PROFILE := release# of the wheel; `make build PROFILE=fast` is for trying a change from Python
SECONDS := 60# for simulate and elastic-soak
ARGS :=# handed on to demo, bench, simulate, crash-cells and the soaks: make demo ARGS="--scale 4"

VENV := .venv/bin
# Tests press Ctrl-C, to which what a background shell starts is deaf.
HEARING := env --default-signal=HUP,INT,QUIT
# Everything that is neither a figure nor a wheel is built with the profile `fast` (Cargo.toml).
# One selection of packages for all of it: another one unifies features differently and builds anew.
FAST := --profile fast --locked --workspace --exclude honeycomb-python
CARGO_FAST := cargo build $(FAST)
# The state machines without I/O, with the planted bugs of the simulator.
QUICK := --profile fast --locked $(foreach crate,types wire block structures catalog,-p honeycomb-$(crate)) \
	--features honeycomb-structures/bug-bank,honeycomb-catalog/bug-bank
# The bindings are an extension module: nothing to test in Rust, and no libpython to link to.
RUST_TESTS := $(HEARING) scripts/rust-tests $(FAST)
# Many of these tests wait for processes: as many workers as there are cores.
PYTEST := $(VENV)/pytest -c python/pyproject.toml --numprocesses $(shell nproc) --dist worksteal
PYTHON_CODE := $(wildcard python protocol examples bench scripts) scripts/tidy scripts/rust-tests

# What the wheel is made from; folders too, so that a deleted file counts as a change.
WHEEL_SOURCES := Cargo.toml Cargo.lock rust-toolchain.toml scripts/build-wheel.sh \
	python/pyproject.toml python/Cargo.toml $(wildcard examples/data/*.gz) \
	$(shell find crates python/src python/honeycomb -name __pycache__ -prune -o \
		-path python/honeycomb/data -prune -o -print 2>/dev/null)

BENCH_SOURCES := $(shell find bench/suite bench/workload -type f)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo test
demo: build ## set up, then count the words of the King James Bible on an elastic cluster
	$(VENV)/honeycomb demo $(ARGS)

test: SECONDS := 10
test: ## set up, then every test, from lints to real processes; prints the time of each ring
	@scripts/rings.sh lint unit unsafe 'simulate SECONDS=$(SECONDS)' integration
	@verify/versitygw/build.sh --remind

.PHONY: quick
quick: setup ## the innermost rings, in a minute: house rules, state machines without I/O, the simulator for 5 s
	cargo fmt --all --check
	$(VENV)/ruff format --check $(PYTHON_CODE) --config python/pyproject.toml
	$(VENV)/python scripts/tidy
	$(VENV)/python protocol/generate.py --check
	$(PYTEST) -q scripts/tests protocol/tests
	cargo test $(QUICK) -- --skip model::
	$(CARGO_FAST) --bin simulate
	target/fast/simulate --seconds 5

.PHONY: setup peers build bench-wheel
setup:
	@scripts/bootstrap.sh

peers: setup # what others bring, to be measured beside Honeycomb
	@scripts/bootstrap.sh bench
	@verify/versitygw/build.sh

build: setup ## the wheel in dist/, installed into .venv
	@$(MAKE) -s .stamps/wheel-$(PROFILE) PROFILE=$(PROFILE)

bench-wheel: build ## the wheel of `honeycomb bench` in dist/, installed into .venv
	@$(MAKE) -s .stamps/bench-$(PROFILE) PROFILE=$(PROFILE)

# One wheel of each kind is installed at a time: the stamp of another profile goes.
.stamps/wheel-$(PROFILE): $(WHEEL_SOURCES) .stamps/requirements.txt
	@mkdir -p python/honeycomb/data && touch $@.begun # a source that changes from here on is newer
	PROFILE=$(PROFILE) scripts/build-wheel.sh
	@rm -f .stamps/wheel-release .stamps/wheel-fast && mv $@.begun $@

.stamps/bench-$(PROFILE): $(WHEEL_SOURCES) $(BENCH_SOURCES) .stamps/requirements.txt
	@touch $@.begun
	PROFILE=$(PROFILE) scripts/build-wheel.sh bench
	@rm -f .stamps/bench-release .stamps/bench-fast && mv $@.begun $@

.PHONY: lint tidy unit unsafe integration
lint: setup tidy ## formatting, clippy, generated code, ruff, mypy, house rules
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked --keep-going -- -D warnings
	$(VENV)/python protocol/generate.py --check
	$(VENV)/python protocol/vectors.py --check
	$(VENV)/python python/generator --check
	$(VENV)/ruff check $(PYTHON_CODE) --config python/pyproject.toml
	$(VENV)/ruff format --check $(PYTHON_CODE) --config python/pyproject.toml
	cd python && ../$(VENV)/mypy --strict honeycomb
	cd python && ../$(VENV)/mypy --strict generator
	cd python && ../$(VENV)/mypy --strict ../scripts/tidy ../scripts/tidy_tree.py
	cd python && ../$(VENV)/mypy --strict ../scripts/rust-tests
	$(PYTEST) -q scripts/tests protocol/tests

tidy: setup ## house rules alone: columns, lengths, phrases, dead files; scripts/tidy --help explains
	$(VENV)/python scripts/tidy

unit: peers ## the Rust tests
	$(RUST_TESTS)

unsafe: setup ## crates/block under Miri and AddressSanitizer, where there is a nightly Rust
	scripts/unsafe.sh

integration: peers bench-wheel ## the Python tests, against the installed wheel and real processes
	$(CARGO_FAST) --bin honeycomb-with-log
	$(HEARING) $(PYTEST) --durations=20 --durations-min=2 python/tests

.PHONY: simulate soak tier-soak elastic-soak crash-cells bench figures
simulate: setup ## the simulator, for SECONDS=60
	$(CARGO_FAST) --bin simulate
	target/fast/simulate --seconds $(SECONDS) $(ARGS)

soak: setup ## a million items through a queue whose clients are killed; ARGS="--items 8000000"
	$(CARGO_FAST) --bin honeycomb --bin queue-soak
	target/fast/queue-soak $(ARGS)

tier-soak: setup ## structures four times as large as memory on disks; ARGS="--runs 500", ARGS="--runs 200 --faults"
	$(CARGO_FAST) --bin honeycomb --bin tier-soak
	target/fast/tier-soak $(ARGS)

elastic-soak: SECONDS := 600
elastic-soak: setup ## an hour of 50 jobs on two memory servers, in SECONDS=600; ARGS="--kills 2"
	$(CARGO_FAST) --bin honeycomb --bin elastic-soak
	target/fast/elastic-soak --seconds $(SECONDS) $(ARGS)

crash-cells: setup ## moves in which a process dies, one cell after the other; ARGS="MergeUp"
	CRASH_CELLS="$(ARGS)" cargo test $(FAST) --test program crash_cells -- --nocapture

bench: peers bench-wheel ## latency, throughput and server CPU per operation: kv, queue, file, controller
	@for what in kv queue file controller; do $(VENV)/honeycomb bench $$what $(ARGS) || exit 1; done

figures: bench-wheel ## elasticity, repartition, sensitivity, pressure, the catalog: plots and data in docs/figures
	@for what in elasticity repartition sensitivity 'pressure --simulate' pressure 'catalog --curve'; do \
		$(VENV)/honeycomb bench $$what --out docs/figures $(ARGS) || exit 1; done

.PHONY: format generate clean
format: setup ## lay out Rust and Python as the lints want it
	cargo fmt --all
	$(VENV)/ruff check --fix-only --quiet $(PYTHON_CODE) --config python/pyproject.toml
	$(VENV)/ruff format $(PYTHON_CODE) --config python/pyproject.toml

generate: setup ## tables of each language from protocol/messages.toml, Python's stubs and asynchronous twins
	$(VENV)/python protocol/generate.py
	$(VENV)/python python/generator

clean: ## remove all that was built or installed here
	rm -rf target dist .venv .stamps .peers python/honeycomb/data python/honeycomb_store.data
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -rf python/.mypy_cache python/.pytest_cache .ruff_cache python/.ruff_cache
