# make run    start the playground on http://127.0.0.1:7860 (ARGS="--port 7861 --model DIR" are passed on)
# make test   everything the tests need, then all tests (ARGS="tests/models -k rope" to choose)
# make bench  the benchmark table, as Markdown and JSON in benchmarks/results/
# make lint   style, types, front end, Dockerfile

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := run
.PHONY: run test bench lint format clean

run: $(VENV)/.ready-run
	$(BIN)/python app.py $(ARGS)

test: $(VENV)/.ready-browser
	$(BIN)/python -m pytest $(ARGS)

bench: $(VENV)/.ready-browser
	$(BIN)/python -m benchmarks $(ARGS)

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/hadolint Dockerfile
	sh scripts/lint_frontend.sh

format: $(VENV)/.ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis

# Stamps: what is installed already is not looked at again until its list changes.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed; name one with: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || \
	  { echo "This Python has no venv module; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-run: requirements.txt | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check "$$(grep '^torch==' requirements.txt)"
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements.txt
	@touch $@

$(VENV)/.ready-dev: requirements-dev.txt $(VENV)/.ready-run
	$(BIN)/python -m pip install --disable-pip-version-check -r requirements-dev.txt
	@touch $@

$(VENV)/.ready-browser: $(VENV)/.ready-dev scripts/ensure_browser.sh
	@if sh scripts/ensure_browser.sh $(BIN); then touch $@; fi  # without one, browser tests skip and say so
