# Everything runs in .venv, which `make setup` fills with pinned packages and
# which is left alone while the files it was made from are unchanged.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
COMPILE := $(BIN)/uv pip compile --universal --python-version 3.11 --quiet \
	--generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow lint format requirements docs clean postgres-versions s3-server \
	bench-capture bench-capture-latency bench-log-age bench-pipeline bench-freshness \
	bench-pipeline-age bench-backlog bench-refresh bench-snapshot bench-verify \
	bench-replica bench-replica-lag bench-copy

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' \
		| awk -F'|' '{printf "  %-22s %s\n", $$1, $$2}'

setup: .venv/.installed  ## Create .venv with the pgtide command in it

demo: setup  ## Watch changes of a small shop arrive, without any set-up; its lake stays in demo/
	rm -rf demo/log demo/lake demo/audit
	$(BIN)/pgtide demo --keep demo

test: lint  ## Lint, type check and run the fast tests
	$(BIN)/python -m pgtide.spark.jars
	$(BIN)/python -m pytest -n auto --maxprocesses 4 -m "not slow" --durations=40 --durations-min=10

test-slow: .venv/.installed-dev  ## Run all tests: crashes, big transactions, each Postgres release
	$(BIN)/python -m pgtide.spark.jars
	PGTIDE_TEST_COMPILED=1 $(BIN)/python -m pytest -rs

lint: .venv/.installed-dev  ## Lint, check the format and the types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.installed-dev  ## Format the code and correct what can be corrected
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.installed-dev  ## Write the reference pages from the code
	$(BIN)/python scripts/reference.py

bench-capture: setup  ## Time to drain a slot, against pg_recvlogical
	$(BIN)/python -m benchmarks.capture

bench-capture-latency: setup  ## From commit to visible in the log
	$(BIN)/python -m benchmarks.capture_latency

bench-log-age: setup  ## Cost of appending and tailing on an old log
	$(BIN)/python -m benchmarks.log_age

bench-pipeline: setup  ## A backlog through Spark into mirrors, against a hand-written job
	$(BIN)/python -m benchmarks.pipeline

bench-freshness: setup  ## From commit to queryable in mirrors of a million rows
	$(BIN)/python -m benchmarks.freshness

bench-pipeline-age: setup  ## The same on a log with 50 000 commits behind it
	$(BIN)/python -m benchmarks.pipeline_age

bench-backlog: setup  ## Ten million changes within 4 GB
	$(BIN)/python -m benchmarks.backlog

bench-snapshot: setup  ## Rows a second of an initial snapshot, against COPY
	$(BIN)/python -m benchmarks.snapshot

bench-refresh: setup  ## A table read again while others write
	$(BIN)/python -m benchmarks.refresh

bench-verify: setup  ## Five million rows verified, against one aggregate in Postgres
	$(BIN)/python -m benchmarks.verify

bench-replica: setup  ## Another Postgres catching up, against a native subscription
	$(BIN)/python -m benchmarks.replica

bench-replica-lag: setup  ## From commit to visible in another Postgres
	$(BIN)/python -m benchmarks.replica_lag

bench-copy: setup  ## A database copied, against pg_dump | psql
	$(BIN)/python -m benchmarks.copying

postgres-versions:  ## Fetch the Postgres releases of the version tests (needs Maven)
	scripts/postgres-versions

s3-server: setup  ## Fetch the S3-compatible server of the object store tests (needs Maven)
	scripts/s3-server
	$(BIN)/python -m pgtide.spark.jars s3

requirements: .venv/.installed-dev  ## Pin the newest versions that pyproject.toml allows
	$(COMPILE) pyproject.toml --extra demo --group build --upgrade -o requirements.txt
	$(COMPILE) pyproject.toml --extra demo --group build --group dev --upgrade \
		-c requirements.txt -o requirements-dev.txt
	sed -n 's/^java = \["\(.*\)"\]$$/\1/p' pyproject.toml \
		| $(COMPILE) --upgrade -o requirements-java.txt -

clean:  ## Remove .venv and everything that tools have cached
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis dist demo
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "pgtide needs Python 3.11 or newer: make PYTHON=python3.12 …" >&2; exit 3; }
	$(PYTHON) -m venv .venv

.venv/.installed: requirements.txt requirements-java.txt pyproject.toml | .venv/bin/python
	$(PIP) install --quiet --require-hashes -r requirements.txt
	$(PIP) install --quiet --no-deps --no-build-isolation -e .
	@$(BIN)/python -m pgtide.spark.java 2>/dev/null \
		|| $(PIP) install --quiet --require-hashes -r requirements-java.txt
	$(BIN)/python -m pgtide.capture.warm
	@touch $@

.venv/.installed-dev: requirements-dev.txt .venv/.installed
	$(PIP) install --quiet --require-hashes -r requirements-dev.txt
	@touch $@
