# `make run` and `make test` install what they need first.  The second time is quick.

PYTHON ?= python3
PORT ?= 3000
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet install --use-pep517 --constraint .constraints.txt
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --no-header --no-annotate --no-emit-index-url

# With this variable, each of the many processes of the tests would compile the same
# files again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help run test test-fast lint dist audit deploy-check docs bench bench-quick soak examples lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile

run: $(VENV)/hub ## serve a hub on http://localhost:3000, or on PORT=..., for development
	@$(BIN)/skipfilter serve --dev --port $(PORT)

test: lint ## check style and types, and run all tests but the long ones
	@.ci/system-packages
	@$(BIN)/python -m pytest --numprocesses 4 -m "not soak and not deploy" --durations 20

test-fast: $(VENV)/dev ## run the tests that start no process: no server, no browser, no Java
	@$(BIN)/python -m pytest --numprocesses 2 -m "not processes and not soak and not deploy"

lint: $(VENV)/dev ## check style, types, and the order of imports
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

dist: $(VENV)/release ## build a release: wheel, source, SBOM and hashes
	@rm -rf dist
	@$(BIN)/python -m build --quiet --no-isolation
	@$(BIN)/twine check --strict dist/*
	@PYTHONWARNINGS=ignore $(BIN)/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
	    --output-file dist/skipfilter.cdx.json examples/deploy/requirements.txt
	@cd dist && sha256sum * > SHA256SUMS

audit: $(VENV)/release ## ask whether the pinned versions have known vulnerabilities
	@$(BIN)/pip-audit --strict --no-deps --disable-pip --requirement .constraints.txt

deploy-check: $(VENV)/dev dist ## build a release, and try it and examples/deploy; needs root, 6 GB, ports 3000 and 3001
	@.ci/system-packages deploy
	@$(BIN)/python -m pytest -m deploy

docs: $(VENV)/dev $(VENV)/release ## build the site in build/docs/site, and check its links
	@$(BIN)/python -m tests.docs

bench: $(VENV)/dev ## measure, and write results, tables and plots to bench/
	@$(BIN)/python -m bench
	@$(BIN)/python -m bench.report

bench-quick: $(VENV)/dev ## measure small sizes in about eight minutes, and write nothing to bench/
	@$(BIN)/python -m bench --quick

soak: $(VENV)/dev ## run the long tests, the browser fifty times, and twenty minutes of faults; needs root to fill a disk
	@.ci/system-packages
	@$(BIN)/python -m pytest --numprocesses 4 -m soak
	@for time in $$(seq 50); do $(BIN)/python -m pytest --quiet --no-header tests/hub/test_browser.py || exit; done
	@$(BIN)/python -m tests.soak redis
	@$(BIN)/python -m tests.soak sqlite --may-lose

examples: $(VENV)/examples ## install the dependencies of the examples

lock: $(VENV)/release ## pin the newest versions of all dependencies, for the next `make test`
	@$(LOCK) pyproject.toml --upgrade --all-extras --no-emit-package skipfilter --output-file .constraints.txt
	@$(LOCK) pyproject.toml --constraint .constraints.txt --extra hub --extra redis --generate-hashes \
	    --output-file examples/deploy/requirements.txt
	@printf 'hatchling\nhatch-fancy-pypi-readme\n' | $(LOCK) - --upgrade --generate-hashes \
	    --output-file examples/deploy/build-requirements.txt

clean: ## remove all files that make, tests and tools created
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	    || { echo "make: Python 3.11 or newer is needed; name one with PYTHON=..."; exit 1; }
	@echo "Creating a virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV) \
	    || { rm -rf $(VENV); echo "make: on Debian and Ubuntu, 'apt-get install python3-venv' is needed"; exit 1; }

# An empty file in $(VENV) marks an extra as installed.  It is installed again if the file is
# older than the pinned versions.
$(VENV)/hub $(VENV)/dev $(VENV)/examples $(VENV)/release: $(VENV)/%: pyproject.toml .constraints.txt | $(BIN)/python
	@echo "Installing skipfilter[$*] into $(VENV)"
	@$(PIP) --editable '.[$*]'
	@touch $@
