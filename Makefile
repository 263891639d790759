# Each target sets up its own virtual environment the first time and is quick the next.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint bench bench-conv bench-composite bench-store bench-train clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("frpt needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

demo: $(READY)
	$(BIN)/frpt demo

test: lint
	$(BIN)/python -m pytest -n 2

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/reconstruct.py

bench-conv: $(READY)
	$(BIN)/python benchmarks/conv.py

bench-composite: $(READY)
	$(BIN)/python benchmarks/composite.py

bench-store: $(READY)
	$(BIN)/python benchmarks/store.py

bench-train: $(READY)
	$(BIN)/python benchmarks/train.py

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
