# make demo and make test do all the set-up they need; nothing is installed outside .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo reproduce test test-all docs site lint types check clean

demo: $(READY)
	$(BIN)/python -m dsmgp.demo

# The quick form of every experiment of the paper; those whose data DSMGP_DATA does not have are named and left out.
reproduce: $(READY)
	$(BIN)/python -m dsmgp.reproduce all --quick

test: $(READY)
	$(BIN)/python -m pytest -q

test-all: $(READY)
	$(BIN)/python -m pytest -q -m "slow or not slow"

docs: site
	$(BIN)/python -m pytest -q -m "slow or not slow" tests/test_docs.py

site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: lint types

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
