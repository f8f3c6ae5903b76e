# make setup | run | test | model | bench | gpu-check | docs    (all but `setup` set up first, in .venv)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Where no CPU build of torch is at hand: make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu
PIP_INDEX := $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

# Those that run without a GPU; benchmarks/gpu and the rest say in their first lines what they need.
BENCHMARKS := overlap_cpu recording_overhead metrics_scale import_scale

# A file of tests stays in one process, for tests of a file share what they set up. More than four processes gain little,
# and each holds a gigabyte. In one process, with output as it comes: make test TEST_PROCESSES=
TEST_PROCESSES ?= -n auto --maxprocesses 4 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help setup run test model bench gpu-check docs

help:
	@sed -n 1p Makefile

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@echo "setup: installing hprof and its tools into $(VENV), once: 3 GiB on disk, some minutes"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "hprof needs Python 3.11 or later: make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check "pip>=25.1"
	@$(BIN)/python -m pip install -qq $(PIP_INDEX) --constraint constraints.txt --editable . --group dev & \
	pip=$$!; waited=0; while kill -0 $$pip 2>/dev/null; do sleep 1; waited=$$((waited + 1)); \
	test $$((waited % 15)) -ne 0 || echo "setup: $$(du -sh $(VENV) | cut -f1) of about 3G installed"; done; wait $$pip
	@touch $@

# A link slowed to what this CPU computes, as a GPU's bus is slow beside the GPU: then prefetch has something to hide.
run: setup
	$(BIN)/hprof run --link-gb-s 0.5 -n 8

test: setup
	@echo "test: ruff, mypy --strict, then pytest"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m pytest $(TEST_PROCESSES)

model: setup
	@$(BIN)/python -m executor.models.fetch

bench: setup
	@for name in $(BENCHMARKS); do echo "== benchmarks/$$name.py"; $(BIN)/python benchmarks/$$name.py; done

gpu-check: setup
	@$(BIN)/python -m benchmarks.gpu.check

docs: setup
	@$(BIN)/python -m docs.write_commands docs/commands.md
	@$(BIN)/python docs/draw_arms.py
