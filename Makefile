# `make` lists the targets. Each one works from a fresh checkout: what it needs is made first.

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# Workers of `make test`. Tests start kernels, so more workers than cores only make each of them slower.
JOBS   ?= 2
# More arguments for pytest or the benchmarks: make test ARGS="-k takeover -x"
ARGS   ?=
FAST   := $(wildcard tests/core tests/wire tests/journal)

.DEFAULT_GOAL := help
.PHONY: help venv demo lint check test soak bench docs types hooks clean

help: ## List the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z]+:.*## / {printf "  make %-7s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## Make .venv with the package (editable), the test and the development tools

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or later is needed; try: make venv PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input -e '.[test,dev]'
	$(BIN)/python -m bash_kernel.install --sys-prefix >/dev/null
	@touch $@

demo: $(STAMP) ## Play the story: a person and an agent share one kernel, with real processes
	$(BIN)/jupyter-cmdop demo

lint: $(STAMP) ## Lint, format, types, import contracts, spelling, generated pages: seconds
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python tools/code_map.py --check
	$(BIN)/python tools/reference.py --check
	$(BIN)/python tools/typescript.py --check

check: lint ## lint and the pure tests: what to run before each commit
	$(BIN)/python -m pytest -q $(FAST) $(ARGS)

test: lint ## Everything that a change must pass (as .ci/run, which installs Chromium; without one browser tests are skipped)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --reruns 1 $(ARGS)

soak: $(STAMP) ## The tests that run for minutes
	$(BIN)/python -m pytest -m soak -n 0 --timeout 3600 $(ARGS)

bench: $(STAMP) ## Measure beside a plain kernel and jupyter_server; ARGS: rows, --quick, --markdown FILE
	$(BIN)/python bench/run.py $(ARGS)

docs: $(STAMP) ## Write the generated pages again: docs/reference and the map of the code
	$(BIN)/python tools/code_map.py
	$(BIN)/python tools/reference.py

types: $(STAMP) ## Write the TypeScript types of the HTTP API from its OpenAPI file again (needs Node.js)
	$(BIN)/python tools/typescript.py

hooks: $(STAMP) ## Run the linters before each git commit
	$(BIN)/pre-commit install

clean: ## Remove .venv, caches and built files
	rm -rf $(VENV) build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find jupyter_cmdop tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
