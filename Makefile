# What a newcomer, a developer and CI run. Every target first makes .venv, which needs only make and Python 3.11 or newer.
#
#   make demo PYTHON=python3.12     choose the interpreter
#   make test TESTS=tests/unit      run a part; ARGS="-x -k name" goes to pytest
#   make test JOBS=0                one after the other; most tests wait, so that two at once take half as long

VENV  ?= .venv
TESTS ?= tests
ARGS  ?=
JOBS  ?= 2
BIN   := $(VENV)/bin
STAMP := $(VENV)/.synced

# The uv that wrote uv.lock; it goes into .venv, nothing is installed outside this directory.
UV_VERSION := 0.13.9

# Tried in this order. The first two are the versions that CI tests.
PYTHONS := $(if $(PYTHON),$(PYTHON),python3.13 python3.11 python3.12 python3 python3.14)
FITS    := import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))

.PHONY: help demo test check bench docs dist clean

help:
	@echo "make demo   a service, one good endpoint and four bad ones, live in this terminal; ends by itself"
	@echo "make test   every test"
	@echo "make check  ruff, mypy, import contracts"
	@echo "make bench  the client's, the pipeline's and the limits' cost on this machine, and what the limits promise"
	@echo "make docs   the documentation as a site, in docs/_build"
	@echo "make dist   the wheel and the source archive, in dist"
	@echo "make clean  remove .venv and caches"

demo: $(STAMP)
	@$(BIN)/gatepost demo

test: $(STAMP)
	$(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(TESTS) $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

bench: $(STAMP)
	$(BIN)/python -m bench.client --quick
	$(BIN)/python -m bench.pipeline --quick
	$(BIN)/python -m bench.limits --quick

docs: $(STAMP)
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -b dirhtml -j auto docs docs/_build
	@echo "docs/_build/index.html"

dist: $(STAMP)
	rm -rf dist
	$(BIN)/uv build --quiet --python $(BIN)/python --out-dir dist
	@ls dist/*

clean:
	rm -rf .venv .venv-* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .coverage dist build docs/_build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml uv.lock
	@if [ ! -x $(BIN)/python ]; then \
	  for candidate in $(PYTHONS); do \
	    if $$candidate -c '$(FITS)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$python" ]; then \
	    echo "Gatepost needs Python 3.11 or newer with its venv module. Looked for: $(PYTHONS)." >&2; \
	    echo "Install it (on Debian or Ubuntu: apt install python3 python3-venv), or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; \
	    exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$($$python --version), once; about a minute."; \
	  $$python -m venv $(VENV); \
	fi
	@if [ ! -x $(BIN)/uv ]; then \
	  $(BIN)/python -m ensurepip --default-pip >/dev/null 2>&1 || true; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION); \
	fi
	@VIRTUAL_ENV= UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv sync --quiet --frozen --inexact --all-extras --all-groups --python $(BIN)/python
	@touch $(STAMP)
