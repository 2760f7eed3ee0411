# Thin: each target sets up what is missing (scripts/setup.sh) and hands over to CMake, pytest or a script.
# `make help` lists them.
PRESET := $(if $(ZIG),zig,release)

.PHONY: all demo docs test check faults soak check-arm64 soak-arm64 harm-arm64 bench tables lint wheel wheel-musl dist packages release dist-arm64 clean help

all: ## build build/release/bin/probing (ZIG=1: with zig cc for glibc 2.17, in build/zig)
	@scripts/build.sh $(PRESET) all

demo: ## start a small training job, inject, show what can be asked of it
	@scripts/setup.sh demo
	@scripts/build.sh $(PRESET) all
	@scripts/demo.sh build/$(PRESET)/bin/probing

test: ## set up what is missing, build and run every test
	@scripts/setup.sh test
	@build/venv/bin/python scripts/test.py

check: ## while you change code: unit tests and the quick ones of the rest, in under two minutes
	@scripts/setup.sh test
	@build/venv/bin/python scripts/test.py quick

faults: ## every program of faults/: what `probing diagnose` says of it, and whether that is right
	@scripts/setup.sh test
	@scripts/build.sh $(PRESET) all
	@faults/run

soak: ## the long form of the tests: more injections, more kills, minutes of fuzzing, Spark, Ray
	@scripts/setup.sh test
	@scripts/setup.sh soak
	@PROBING_SOAK=1 build/venv/bin/python scripts/test.py

check-arm64: ## injection, kills at every step, stacks, eval, SQL and detach in an emulated aarch64 machine (needs root once)
	@scripts/setup.sh test
	@scripts/arm64.sh build
	@scripts/arm64.sh run tests/arm64/short.sh

soak-arm64: ## the long form of that: unit and integration tests too (PARTS=injections: 1,000 of them)
	@scripts/setup.sh test
	@scripts/arm64.sh build
	@scripts/arm64.sh run tests/arm64/soak.sh $(PARTS)

harm-arm64: ## the harm suite there, by a clock that counts instructions
	@scripts/setup.sh test
	@scripts/arm64.sh build
	@PROBING_ARM64_CLOCK=instructions PROBING_ARM64_LIMIT=7200 scripts/arm64.sh run tests/arm64/soak.sh harm

bench: ## every performance figure, beside its peer
	@scripts/setup.sh bench
	@scripts/bench.sh

tables: ## docs/tables.md, from src/control/tables.def
	@python3 scripts/tables.py

lint: ## the rules of the source alone: layers, symbols, format, clang-tidy, both compilers
	@scripts/setup.sh test
	@build/venv/bin/python scripts/test.py lint

wheel: ## dist/probing-*.whl, with the programs and agents in it
	@scripts/setup.sh wheel
	@scripts/wheel.sh

wheel-musl: ## the wheel for musl (Alpine), with DuckDB and the libraries of GCC that it needs
	@scripts/setup.sh wheel
	@scripts/wheel.sh $$(uname -m) musl

dist: ## dist/probing-*.tar.gz, which unpacks and runs
	@scripts/build.sh zig all
	@scripts/dist.sh

packages: ## dist/probing*.deb and .rpm, with the service, the manual page, completions and units for systemd
	@scripts/setup.sh wheel
	@scripts/packages.sh

release: ## all of these for VERSION=0.2.0, with a list of hashes (signed by PROBING_SIGN_KEY) and of what is in them (SPDX)
	@scripts/release.sh "$(VERSION)"

dist-arm64: ## the wheel and the archive for aarch64, installed and used in the emulated machine
	@scripts/setup.sh test
	@scripts/setup.sh wheel
	@scripts/arm64.sh build
	@scripts/wheel.sh aarch64
	@scripts/dist.sh aarch64
	@scripts/arm64.sh run tests/arm64/installed.sh

docs: ## build/site: the pages of docs/ with search (MkDocs)
	@scripts/docs.sh

clean: ## remove what was built, but not what was set up (build/venv, build/roots, build/duckdb)
	@find build -mindepth 1 -maxdepth 1 ! -name venv ! -name roots ! -name duckdb -exec rm -rf {} + 2>/dev/null || true
	@rm -rf dist

help: ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' Makefile | expand -t 16
