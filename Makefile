# The verbs of the project. `make demo` and `make test` need nothing but Python 3.11 or newer and a network.
# PYTHON=python3.12 make install   picks the interpreter (when .venv does not exist yet).

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := feedsvc tests $(wildcard bench)
# Twice the two cores that continuous integration gives: many tests wait.
WORKERS ?= 4
# A place of several tests (one embedded database, say) is named with pytest.mark.xdist_group.
PYTEST := $(BIN)/pytest -n $(WORKERS) --dist loadgroup
# The short form on both cores, with the figures at the end.
VERIFY_HOW = $(if $(filter short,$(VERIFY_SCALE)),-n 2 --dist loadfile -rfEP,-s)
COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-annotate --custom-compile-command "make lock" --quiet

.PHONY: help install demo test check format verify bench lock clean

help: ## list the verbs
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

$(STAMP): requirements.lock requirements-dev.lock
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11) and "feedsvc needs Python 3.11 or newer")'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

install: $(STAMP) ## make .venv with everything that demo and tests need

demo: $(STAMP) ## embedded database, sample data, the service, and frames to paste
	$(BIN)/feedsvc demo

test: $(STAMP) ## the tests, a few minutes
	$(PYTEST)

check: $(STAMP) ## style, types, import contracts, generated files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(SOURCES)
	$(BIN)/lint-imports
	$(BIN)/python -m feedsvc.openapi --check

format: $(STAMP) ## let ruff rewrite what `check` would refuse
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

verify: $(STAMP) ## the long must-shows with their figures; VERIFY_SCALE=short for the short form
	$(BIN)/pytest -m verify $(VERIFY_HOW) --timeout 1200

bench: $(STAMP) ## measure
	$(BIN)/python -m bench

lock: $(STAMP) ## resolve pyproject.toml anew into the lock files; UPGRADE=--upgrade takes newer versions
	$(COMPILE) $(UPGRADE) pyproject.toml -o requirements.lock
	$(COMPILE) $(UPGRADE) pyproject.toml --all-extras -o requirements-dev.lock
	$(COMPILE) $(UPGRADE) --group pyproject.toml:build -o requirements-build.lock

clean: ## remove everything that these verbs made
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
