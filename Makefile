# `make` alone prints this list. Needs nothing but make, sh and Python 3.11 or newer.

# Variables to override on the command line, for example `make test WORKERS=8 ARGS="-k fence"`.
PYTHON ?= python3 python3.13 python3.12 python3.11
WORKERS ?= 2
ARGS ?=
VERSITYGW := v1.8.0
BENCHMARKS ?= $(filter-out benchmarks/_%,$(sort $(wildcard benchmarks/*.py)))

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_BENCH := $(VENV)/.ready-bench
# Work stealing, because a few parametrised files do most of the work and must be split.
# Tests start many processes, each of which would compile the package again if it were not kept.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
WORKING := -n $(WORKERS) --dist worksteal
# Every process that runs tests marked spark starts its own Spark, so one process runs all of them,
# in parallel with the others; its output is printed at the end. With WORKERS=0 there is one process.
# Exit code 5 means that $(ARGS) selected no test of that kind.
ifeq ($(WORKERS),0)
TESTS = $(PYTEST) -n 0 -m "$(1)" $(ARGS)
else
TESTS = log=$$(mktemp); \
	$(PYTEST) -n 0 -m "($(1)) and spark" $(ARGS) >"$$log" 2>&1 & spark=$$!; \
	trap 'kill $$spark 2>/dev/null; rm -f "$$log"' EXIT; trap 'exit 130' INT TERM; \
	$(PYTEST) $(WORKING) -m "($(1)) and not spark" $(ARGS); here=$$?; \
	wait $$spark; there=$$?; cat "$$log"; \
	for code in $$here $$there; do test $$code -eq 0 || test $$code -eq 5 || exit $$code; done
endif
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all mutants check bench formats docs real-s3 clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(READY) ## Create .venv and install the package and its tools (again only when needed)
	@$(BIN)/python -c '$(SHOW)'

demo: $(READY) ## Two writers race for a pipeline, and one is killed halfway: nothing is lost
	@$(BIN)/stepwell demo
	@$(BIN)/stepwell demo --crash

test: $(READY) ## Run the tests that take minutes, not hours
	@$(call TESTS,not slow)

test-all: $(READY) ## Run every test, with 100,000 simulator seeds
	@export STEPWELL_SIM_SEEDS=$${STEPWELL_SIM_SEEDS:-100000}; $(call TESTS,slow or not slow)

mutants: $(READY) ## Plant each bug of tests/mutants and check that its tests fail; ARGS="-k name" selects
	@$(BIN)/python -m tests.mutants.run $(ARGS)

check: $(READY) ## Lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY_BENCH) ## Run the benchmarks one after another
	@set -e; for file in $(BENCHMARKS); do echo "$$file"; $(BIN)/python "$$file"; done

formats: $(READY) ## Regenerate the stored pipeline of this version in tests/formats
	@$(BIN)/python -m tests.formats.generate

docs: $(READY) ## Regenerate the generated pages of docs/
	$(BIN)/python docs/generate.py

real-s3: ## Build the S3 server that some tests use, outside of the repository; needs Go
	GOBIN=$(HOME)/.cache/stepwell-tests/versitygw-$(VERSITYGW) go install github.com/versity/versitygw/cmd/versitygw@$(VERSITYGW)

clean: ## Remove .venv, caches and build leftovers
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests docs benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# An unusable .venv (created by hand, incomplete, or with a missing or too old Python) is recreated;
# a usable one is only updated.
USABLE := import pip, sys; sys.exit(sys.version_info < (3, 11))
JAVA := import os; from stepwell.execution.java import find_java; find_java(os.environ)
SHOW := import os, sys; from stepwell.execution.java import find_java; java = find_java(os.environ); \
    print(f"ready: Python {sys.version.split()[0]} in $(VENV), Java {java.version} of {java.origin}: {java.program}")

$(READY): pyproject.toml constraints.txt
	@set -e; \
	if ! $(BIN)/python -c '$(USABLE)' 2>/dev/null; then \
	    for python in $(PYTHON); do \
	        if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	    done; \
	    if [ -z "$${found:-}" ]; then \
	        echo "make setup: found no Python 3.11 or newer, tried: $(PYTHON)" >&2; \
	        echo "hint: install one, or name it: make setup PYTHON=/path/to/python3" >&2; \
	        exit 1; \
	    fi; \
	    echo "creating $(VENV) with $$("$$found" --version)"; \
	    "$$found" -m venv --clear $(VENV); \
	fi
	@echo "installing the package and its tools into $(VENV); the first time it takes minutes"
	@$(PIP) -c constraints.txt -e '.[dev]'
	@if ! $(BIN)/python -c '$(JAVA)' 2>/dev/null; then \
	    echo "found no Java 17 or newer, so one is installed into $(VENV)"; \
	    $(PIP) -c constraints.txt -e '.[java]'; \
	fi
	@touch $@

$(READY_BENCH): $(READY)
	$(PIP) -c constraints.txt -e '.[bench]'
	@touch $@
