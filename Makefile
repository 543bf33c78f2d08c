# What a person types here. Everything works from a fresh clone with Python 3.11 to 3.13 (python3-venv) and make.
# PYTHON=python3.13 make setup   chooses the interpreter.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup compile demo serve test check soak conformance bench clean

help:
	@echo "make demo    set up the example models, serve them, ask each a question, stop   (start here)"
	@echo "make serve   the same server, which stays up; says what to try next"
	@echo "make test    every check and every test, as CI does it"
	@echo "make check   ruff, mypy and the import contracts alone"
	@echo "make conformance   stock clients and tools against a real server; ARGS=\"--perf-analyzer PATH\""
	@echo "make soak    the long runs (an hour)"
	@echo "make bench   the benchmarks that need no other server, to build/benchmarks; ARGS=\"--rounds 3\""
	@echo "make compile compile the hot modules, two minutes; servers of this checkout use them until a source changes"
	@echo "make setup   only create .venv with all that the others need"
	@echo "make clean   remove .venv and every cache"

setup:
	@scripts/setup dev

compile:
	@scripts/setup dev
	@NAIAD_COMPILE=1 .venv/bin/python setup.py --quiet build_ext --inplace --build-lib build/lib --build-temp build/compile

demo:
	@scripts/setup demo
	@.venv/bin/python scripts/demo.py

serve:
	@scripts/setup demo
	@.venv/bin/python scripts/demo.py --stay

test:
	@scripts/test

check:
	@scripts/setup dev
	@scripts/check

soak:
	@scripts/setup dev
	@.venv/bin/python scripts/setup_models.py
	@.venv/bin/python -m pytest -m soak

# Those beside other servers need to be told where these are: python -m benchmarks.all --help
bench: compile
	@.venv/bin/python scripts/setup_models.py
	@.venv/bin/python -m benchmarks.all --out build/benchmarks --only core,cpu,delays,scrapes,late,sizes $(ARGS)

# Beside a real Triton, or against it: docs/compatibility.md.
conformance:
	@scripts/setup dev
	@.venv/bin/python -m pytest -m "conformance and not soak" tests/conformance $(ARGS)

clean:
	rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist src/*.egg-info src/naiad/_compiled/*.so src/naiad/_compiled/sources*
