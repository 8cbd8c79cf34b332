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

SECONDS := 60# for simulate and elastic-soak
ARGS :=# handed on to demo, bench, simulate, crash-cells and the soaks: make demo ARGS="--scale 4"

VENV := .venv/bin
# Tests press Ctrl-C, to which what a background shell starts is deaf.
HEARING := env --default-signal=HUP,INT,QUIT
# The bindings are an extension module: nothing to test in Rust, and no libpython to link to.
RUST_TESTS := $(HEARING) cargo test --workspace --exclude honeycomb-python --locked
PYTHON_CODE := $(wildcard python protocol examples bench)

# What the wheel is made from; folders too, so that a deleted file counts as a change.
WHEEL_SOURCES := Cargo.toml Cargo.lock rust-toolchain.toml scripts/build-wheel.sh \
	python/pyproject.toml python/Cargo.toml $(wildcard examples/data/*.gz) \
	$(shell find crates python/src python/honeycomb -name __pycache__ -prune -o \
		-path python/honeycomb/data -prune -o -print 2>/dev/null)

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo test
demo: build ## set up, then count the words of the King James Bible on an elastic cluster
	$(VENV)/honeycomb demo $(ARGS)

test: SECONDS := 10
test: lint unit unsafe simulate integration ## set up, then every test, from lints to the simulator
	@verify/versitygw/build.sh --remind

.PHONY: setup peers build
setup:
	@scripts/bootstrap.sh

peers: setup # what others bring, to be measured beside Honeycomb
	@scripts/bootstrap.sh bench
	@verify/versitygw/build.sh

build: setup ## the wheel in dist/, installed into .venv
	@$(MAKE) -s .stamps/wheel

.stamps/wheel: $(WHEEL_SOURCES) .stamps/requirements.txt
	@mkdir -p python/honeycomb/data && touch $@.begun # what changes from here on is newer
	scripts/build-wheel.sh
	@mv $@.begun $@

.PHONY: lint unit unsafe integration
lint: setup ## formatting, clippy, generated code, ruff, mypy
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	$(VENV)/python protocol/generate.py --check
	$(VENV)/python protocol/vectors.py --check
	$(VENV)/ruff check $(PYTHON_CODE) --config python/pyproject.toml
	$(VENV)/ruff format --check $(PYTHON_CODE) --config python/pyproject.toml
	cd python && ../$(VENV)/mypy --strict honeycomb

unit: peers ## the Rust tests
	$(RUST_TESTS)

unsafe: setup ## crates/block under Miri and AddressSanitizer, where there is a nightly Rust
	scripts/unsafe.sh

integration: peers build ## the Python tests, against the installed wheel and real processes
	cargo build --release --locked -p log-server
	$(HEARING) $(VENV)/pytest -c python/pyproject.toml python/tests

.PHONY: simulate soak elastic-soak crash-cells bench figures
simulate: setup ## the simulator, for SECONDS=60
	cargo run --release --locked -p honeycomb-verify --bin simulate -- --seconds $(SECONDS) $(ARGS)

soak: setup ## a million items through a queue whose clients are killed; ARGS="--items 8000000"
	cargo build --release --locked -p honeycomb -p honeycomb-verify --bin honeycomb --bin queue-soak
	target/release/queue-soak $(ARGS)

elastic-soak: SECONDS := 600
elastic-soak: setup ## an hour of 50 jobs on two memory servers, in SECONDS=600; ARGS="--kills 2"
	cargo build --release --locked -p honeycomb -p honeycomb-verify --bin honeycomb --bin elastic-soak
	target/release/elastic-soak --seconds $(SECONDS) $(ARGS)

crash-cells: setup ## moves in which a process dies, one cell after the other; ARGS="MergeUp"
	CRASH_CELLS="$(ARGS)" cargo test --locked -p honeycomb --test crash_cells -- --nocapture

bench: peers build ## latency, throughput and server CPU per operation: kv, queue, file, controller
	@for what in kv queue file controller; do $(VENV)/honeycomb bench $$what $(ARGS) || exit 1; done

figures: build ## elasticity, repartition, sensitivity, pressure, the catalog: plots and data in docs/figures
	@for what in elasticity repartition sensitivity 'pressure --simulate' pressure 'catalog --curve'; do \
		$(VENV)/honeycomb bench $$what --out docs/figures $(ARGS) || exit 1; done

.PHONY: format generate clean
format: setup ## lay out Rust and Python as the lints want it
	cargo fmt --all
	$(VENV)/ruff check --fix-only --quiet $(PYTHON_CODE) --config python/pyproject.toml
	$(VENV)/ruff format $(PYTHON_CODE) --config python/pyproject.toml

generate: setup ## tables of each language, from protocol/messages.toml
	$(VENV)/python protocol/generate.py

clean: ## remove all that was built or installed here
	rm -rf target dist .venv .stamps .peers python/honeycomb/data python/honeycomb_store.data
	find . -name __pycache__ -prune -exec rm -rf {} +
	rm -rf python/.mypy_cache python/.pytest_cache .ruff_cache python/.ruff_cache
