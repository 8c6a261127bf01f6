# Every target makes what it needs, .venv first: on a fresh clone `make demo` is the only command to type.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BIN := .venv/bin
PY := $(BIN)/python
PYTEST := $(PY) -m pytest
PURE := build/pure
# Passed on to the command behind the target: make test ARGS="-k recovery", make up ARGS="--listen :9093"
ARGS ?=

# HEADRACE_PURE=1 asks for the uncompiled build; changing one's mind rebuilds.
BUILT := .venv/.built-$(if $(filter 1,$(HEADRACE_PURE)),pure,compiled)

# A module with a .pyi beside it is one that is compiled where there is a C compiler.
STUBS := $(shell find src/headrace -name '*.pyi')
COMPILED := $(STUBS:.pyi=.py) $(shell find src/headrace -name '*.pxd')

# Tests mostly wait for brokers and clients, so a few at once share the cores well.
WORKERS ?= 7
# tests/forked_workers.py: all is imported and collected once.
PARALLEL := --forked $(WORKERS)

# Tests start hundreds of processes: each module is compiled once, not once in each of them.
unexport PYTHONDONTWRITEBYTECODE

# What runs a second time against the uncompiled modules: their own tests, and those of the log, which
# lives by them. Threads, crashes and modules that are never compiled are the same in both builds.
PURE_TESTS := tests/unit/test_build.py tests/unit/client/producer $(filter-out \
	$(addprefix %/test_,apis.py compression.py crashes.py plan.py),$(wildcard \
	tests/unit/protocol/test_*.py tests/unit/storage/compaction/test_*.py \
	$(addprefix tests/unit/storage/test_,log.py log_model.py recovery.py)))

# What `make compat`, `make test-spark` and `make check` run.
ELSEWHERE := $(patsubst %,--ignore=tests/%,compat spark test_tidy.py)

.PHONY: help venv demo up test test-others test-pure test-spark check audit coverage bench compat pythons docs dist \
	sim soak clean

help: ## List the targets
	@echo "headrace: make <target>"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' $(MAKEFILE_LIST) | expand -t 14

# Unpacking Spark keeps one core busy, so the codec is compiled meanwhile.
venv: ## Make .venv: dependencies, headrace itself, the compiled codec
	@$(MAKE) -s --no-print-directory -j2 .venv/.installed $(BUILT)

demo: venv ## Start three brokers, send them 200,000 orders, run a Spark pipeline on them, show the results
	@$(PY) -m examples.demo $(ARGS)

up: venv ## Run a broker on 127.0.0.1:9092 with data in ./headrace-data
	@$(BIN)/headrace up $(ARGS)

# Spark's tests run beside the others, which leave the cores idle now and then, and are shown when
# these are done: in one line, or whole if one failed. HEADRACE_EXPECT_BUILD makes
# tests/unit/test_build.py fail if a run does not get the build it is meant to test.
SPARK_LOG := build/test-spark.log
test: venv ## Run the tests: those of Spark, and beside them some uncompiled, then everything else
	@mkdir -p build; $(MAKE) --no-print-directory test-spark > $(SPARK_LOG) 2>&1 & spark=$$!; \
	trap 'kill $$spark 2>/dev/null || true' INT TERM; \
	failed=0; $(MAKE) --no-print-directory test-pure test-others || failed=1; \
	if wait $$spark; then echo "==> tests on Spark"; sed -n '/ time by directory /,$$p' $(SPARK_LOG); \
	else cat $(SPARK_LOG); failed=1; fi; \
	exit $$failed

test-others: venv
	@build=$$($(PY) tools/codec_build.py expected); \
	echo "==> all other tests, codec build: $$build"; \
	HEADRACE_EXPECT_BUILD=$$build $(PYTEST) tests $(ELSEWHERE) $(PARALLEL) $(ARGS)

# Two processes, each with a session for all of its tests, which takes ten seconds to start.
test-spark: venv
	@echo "==> tests on Spark"
	@mkdir -p build; $(PY) -m tests.spark.class_archive 2> build/spark-classes.log
	@$(PYTEST) tests/spark -n 2 --dist worksteal --durations=10 $(ARGS)

test-pure: venv
	@$(PY) tools/pure_build.py $(PURE)
	@echo "==> protocol, storage and producer tests, codec build: pure"
	@HEADRACE_EXPECT_BUILD=pure PYTHONPATH=$(PURE) $(PYTEST) $(PURE_TESTS) --forked 2 $(ARGS)

check: venv ## Run ruff, mypy, the import contracts, the tidy test, and the audit of dependencies
	@echo "==> ruff"
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@echo "==> mypy"
	@$(BIN)/mypy src tools bench examples tests
	@echo "==> import contracts"
	@$(BIN)/lint-imports --no-logo
	@echo "==> tidy"
	@$(PYTEST) tests/test_tidy.py
	@echo "==> dependencies"
	@$(PY) tools/dependency_audit.py

# Not a part of `make check`, which needs no network. --strict: a package that cannot be looked up fails.
AUDIT := build/audit
audit: ## Ask the package index for vulnerabilities of every pinned version
	@test -x $(AUDIT)/bin/pip-audit || { $(PY) -m venv --clear $(AUDIT) && \
		$(AUDIT)/bin/python -m pip install --quiet -c tools/audit-constraints.txt pip-audit; }
	@$(AUDIT)/bin/pip-audit --strict --no-deps --disable-pip -r constraints.txt $(ARGS)

# Not a part of `make test`: it takes several times as long. Compiled code leaves no trace, so all is
# measured uncompiled. A broker that a test kills with SIGKILL takes what it has measured with it.
COVERAGE := $(CURDIR)/build/coverage
coverage: venv ## Print the branch coverage of src, uncompiled and without Spark; ARGS="tests/spark": by these
	@$(PY) tools/pure_build.py $(PURE)
	@rm -rf $(COVERAGE); mkdir -p $(COVERAGE)
	@failed=0; export COVERAGE_FILE=$(COVERAGE)/data COVERAGE_RUN=1; \
	HEADRACE_EXPECT_BUILD=pure PYTHONPATH=$(CURDIR)/$(PURE) $(PY) -m coverage run -m pytest -n 5 --dist worksteal \
		$(or $(ARGS),tests $(ELSEWHERE)) || failed=1; \
	$(PY) -m coverage combine --quiet; $(PY) -m coverage report; \
	exit $$failed

bench: venv ## Measure throughput, latency, start-up and memory beside this machine's limits
	@$(PY) -m bench $(ARGS)

compat: venv ## Run what others made against a broker: kcat, every client, Kafka's commands, Spark's own source
	@$(PYTEST) tests/compat tests/integration/test_clients.py $(ARGS)

pythons: ## Run the client's tests on every Python from 3.11 to 3.14 that is installed
	@tools/check_pythons.sh $(ARGS)

# What `headrace docs` shows, and what `make dist` packs; strict about links and anchors.
docs: venv ## Build the documentation as a site in build/docs/site, and for `headrace docs`
	@$(PY) tools/build_docs.py

dist: venv docs ## Build sdist and wheel in ./dist, and try the wheel in an empty environment
	@tools/check_dist.sh

# How many simulated clusters to run, from seed 0 on; SEED=n runs that one alone.
SEEDS ?= 20

sim: venv ## Run simulated clusters under faults: SEEDS=n of them, or SEED=n once more
	@$(PY) -m headrace.testing.simulation $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(ARGS)

soak: venv ## Kill brokers, clusters, copiers and pipelines time and again, send a million mutated requests
	@$(PY) -m tools.soak $(ARGS)

clean: ## Remove what was built; data in ./headrace-data stays
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache src/*.egg-info
	@find src/headrace \( -name '*.so' -o -name '*.c' -o -name documentation.zip \) -delete
	@find src tests tools bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.tools: constraints.txt tools/bootstrap.sh
	@tools/bootstrap.sh tools
	@touch $@

.venv/.installed: .venv/.tools pyproject.toml setup.py
	@tools/bootstrap.sh headrace
	@touch $@

$(BUILT): .venv/.tools setup.py tools/codec_build.py $(COMPILED)
	@echo "==> compiling the codec"
	@rm -f .venv/.built-*
	@PYTHONPATH=src $(PY) tools/codec_build.py build --done $@
