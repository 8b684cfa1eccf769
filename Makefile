# make demo and make test do all the set-up they need; nothing is installed outside .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo reproduce test test-all docs site lint types check coverage mutants soak audit package clean

demo: $(READY)
	$(BIN)/python -m dsmgp.demo

# The quick form of every experiment of the paper; those whose data DSMGP_DATA does not have are named and left out.
reproduce: $(READY)
	$(BIN)/python -m dsmgp.reproduce all --quick

# Two files of tests at a time: most of them keep one core busy.
test: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

test-all: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "slow or not slow"

# The site, and whether every tutorial still prints what its page says.
docs: site
	$(BIN)/python -m pytest -q -n 2 -m slow -k tutorials tests/test_docs.py

site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

check: lint types

# What follows takes long, or reaches beyond this folder, and is run on demand only.

# Lines and branches of src that the tests reach; at least 95% of them.
coverage: $(READY)
	$(BIN)/python -m coverage erase
	$(BIN)/python -m coverage run -m pytest -q -n 2 --dist loadfile
	$(BIN)/python -m coverage combine -q
	$(BIN)/python -m coverage report

mutants: $(READY)
	$(BIN)/python benchmarks/mutants.py

soak: $(READY)
	$(BIN)/python benchmarks/soak.py

# Known vulnerabilities of what constraints.txt pins, where their public database can be reached.
audit: $(READY)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/python benchmarks/audit.py

# A wheel, installed with its dependencies into an empty environment, and README's first example run there.
package: $(READY)
	$(BIN)/python -m pytest -q -m slow tests/test_supply.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
