# `make demo` and `make test` each do everything from a fresh clone: they need python3 (3.11 or later).
SHELL := /bin/sh
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
STATE ?= .hexprefect
UV_VERSION := 0.13.9

.PHONY: help setup demo up test lint types unit screenshots api benchmarks compiled \
  compiled-benchmark lock clean

help: ## say what each target does
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

setup: $(STAMP) ## make the environment .venv from the lock file

$(STAMP): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --compile-bytecode requirements.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $(STAMP)

demo: $(STAMP) ## start everything, ask a question through Prefect, stop everything (KEEP=1 keeps it running)
	@HEXPREFECT_STATE=$(STATE) $(BIN)/hexprefect demo $(if $(KEEP),--keep) $(if $(QUESTION),--question "$(QUESTION)")

up: $(STAMP) ## start everything and keep it running until Ctrl-C
	@HEXPREFECT_STATE=$(STATE) $(BIN)/hexprefect up

test: $(STAMP) lint types unit ## lint, check types, run every test but the slow ones

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	$(BIN)/python -m pytest -m "not slow and not benchmark" --numprocesses 2 --dist loadfile --durations 25 $(ARGS)

benchmarks: $(STAMP) ## measure: scheduler overhead, task overhead, simulator speed
	$(BIN)/python -m pytest -m benchmark -s tests/benchmarks $(ARGS)

compiled: $(STAMP) ## build dist/*.whl with a compiled simulator, several times as fast (needs a C compiler)
	rm -rf build/compiled dist/hexprefect-*.whl
	$(BIN)/python -m hatchling build -t sdist -d build/compiled
	HATCH_BUILD_HOOK_ENABLE_MYPYC=true CFLAGS=-ffp-contract=off $(BIN)/python -m pip wheel --quiet \
	  --disable-pip-version-check --no-deps --no-build-isolation -w dist build/compiled/hexprefect-*.tar.gz

compiled-benchmark: compiled ## measure the compiled simulator's speed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  --target build/compiled/site dist/hexprefect-*.whl
	$(BIN)/python -m pytest -o pythonpath="build/compiled/site ." -m "benchmark and not slow" -s \
	  tests/benchmarks/test_simulator_speed.py $(ARGS)

screenshots: $(STAMP) ## refresh the screenshots in docs/images (needs Chromium)
	$(BIN)/python docs/images/take_screenshots.py

api: $(STAMP) ## write docs/api.md anew from the docstrings
	$(BIN)/python docs/write_api.py

lock: ## write requirements.lock anew from pyproject.toml
	$(BIN)/uv pip compile pyproject.toml --extra local --extra test --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-header --quiet --upgrade --output-file requirements.lock

clean: ## remove the environment and the embedded stack's state
	rm -rf $(VENV) $(STATE) build dist .mypy_cache .pytest_cache .ruff_cache
