# make demo and make test do all the set-up they need; nothing is installed outside .venv.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# An environment without torch, for the tests of what a plain installation has.
CORE := .venv-core
CORE_READY := $(CORE)/.ready

.PHONY: demo kernels reproduce test test-core test-all docs tutorials site lint types check coverage mutants soak audit package clean

demo: $(READY)
	$(BIN)/python -m dsmgp.demo

# The LLVM code of the compiled kernels, which the package ships: to be run when one of them changes.
kernels: $(READY)
	$(BIN)/python -W ignore tools/kernels.py

# The quick form of every experiment of the paper; those whose data DSMGP_DATA does not have are named and left out.
reproduce: $(READY)
	$(BIN)/python -m dsmgp.reproduce all --quick

# Two files of tests at a time: most of them keep one core busy.
test: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

# The same from the built wheel, where torch is not installed; what needs an extra that is missing is left out.
test-core: $(CORE_READY)
	rm -rf build/wheel
	$(CORE)/bin/python -m hatchling build -t wheel -d build/wheel
	$(CORE)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall build/wheel/*.whl
	$(CORE)/bin/python -c "import dsmgp, importlib.util as u; assert not u.find_spec('torch') and '$(CORE)' in dsmgp.__file__"
	$(CORE)/bin/python -m pytest -q -n 2 --dist loadfile -p tests.support.missing_extras tests --pyargs dsmgp

test-all: $(READY)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "slow or not slow"

# The site, whether every tutorial still prints what its page says, and whether a browser shows site and reports without faults: without
# a browser that starts, this fails.
docs: site
	DSMGP_BROWSER=required $(BIN)/python -m pytest -q -n 2 -m slow -k "tutorial or browser" tests/test_docs.py tests/report

# The outputs and figures of the tutorials, anew; that on the GPU keeps its own.
tutorials: $(READY)
	$(BIN)/python tools/tutorials.py --write $(filter-out %/million.md,$(wildcard docs/tutorials/*.md))

site: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/proselint check --config .proselintrc.json --output-format compact README.md CONTRIBUTING.md RELEASING.md docs/*.md docs/*/*.md

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

# A wheel, installed with its core dependencies into an empty environment, and the whole default path run there.
package: $(READY)
	$(BIN)/python -m pytest -q -m slow tests/test_supply.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

$(CORE_READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear $(CORE)
	$(CORE)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ".[test]"
	touch $@

clean:
	rm -rf $(VENV) $(CORE) out build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
