# Two commands on a fresh machine with Python 3.10 or later and make: `make demo` and `make test`.
PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
JOBS ?= $(shell nproc 2>/dev/null || echo 2)

.PHONY: setup demo test slow check format clean

setup: $(VENV)/installed

$(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "qdqtool needs Python 3.10 or later; say which: make PYTHON=python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing qdqtool and its tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[cpu,images,dev]"
	@touch $@

demo: setup
	@$(BIN)/python models/journey.py

test: setup
	$(BIN)/python -m pytest -q -n $(JOBS)

slow: setup
	$(BIN)/python -m pytest -q -n $(JOBS) -m slow; code=$$?; test $$code -eq 5 || exit $$code

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --strict qdqtool
	$(BIN)/lint-imports

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) out build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
