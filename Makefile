# One command per task; each makes its own environment first.
PYTHON ?= python3
BIN := $(if $(filter Windows_NT,$(OS)),Scripts,bin)
GROUP ?= dev
VENV := .venv
BENCH := .venv-bench
DEMO := .venv-demo
SITE := docs/_build/html
JOBS ?= 4
MINUTES ?= 60
SEED ?= 0

unexport PYTHONDONTWRITEBYTECODE  # tests start thousands of workers, which would each compile the library

.PHONY: demo test test-all coverage soak faults check bench bench-compare dist docs clean

demo: $(DEMO)/installed
	$(DEMO)/$(BIN)/python examples/digits.py

$(VENV)/installed: pyproject.toml
	test -x $(VENV)/$(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/$(BIN)/python -m pip install -q -U "pip>=25.1"
	$(VENV)/$(BIN)/python -m pip install -q -e . --group $(GROUP)
	touch $@

$(BENCH)/installed: pyproject.toml
	test -x $(BENCH)/$(BIN)/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/$(BIN)/python -m pip install -q -U "pip>=25.1"
	$(BENCH)/$(BIN)/python -m pip install -q -e . --group bench
	touch $@

$(DEMO)/installed: pyproject.toml
	test -x $(DEMO)/$(BIN)/python || $(PYTHON) -m venv $(DEMO)
	$(DEMO)/$(BIN)/python -m pip install -q -U "pip>=25.1"
	$(DEMO)/$(BIN)/python -m pip install -q -e . --group demo
	touch $@

test: $(VENV)/installed
	$(VENV)/$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup

test-all: $(VENV)/installed
	HEADRACE_FAULT_RUNS=20 HYPOTHESIS_PROFILE=thorough $(VENV)/$(BIN)/python -m pytest --all -n $(JOBS) --dist loadgroup

coverage: $(VENV)/installed
	$(VENV)/$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup --cov=headrace --cov-report=term

soak: $(VENV)/installed
	$(VENV)/$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

faults: $(VENV)/installed
	HEADRACE_FAULT_RUNS=$(or $(RUNS),200) HYPOTHESIS_PROFILE=thorough \
	  $(VENV)/$(BIN)/python -m pytest tests/faults/test_faults.py tests/engine/test_processes.py

check: $(VENV)/installed
	$(VENV)/$(BIN)/ruff check src tests benchmarks examples
	$(VENV)/$(BIN)/ruff format --check src tests benchmarks examples
	$(VENV)/$(BIN)/pyright
	$(VENV)/$(BIN)/lint-imports

bench: $(BENCH)/installed
	$(BENCH)/$(BIN)/python -m benchmarks

bench-compare: $(BENCH)/installed
	$(BENCH)/$(BIN)/python -m benchmarks.compare $(or $(BASE),HEAD) $(or $(ROWS),range_map)

dist: $(VENV)/installed
	rm -rf dist
	$(VENV)/$(BIN)/python -m build
	$(VENV)/$(BIN)/python -m twine check --strict dist/*

$(VENV)/installed-docs: $(VENV)/installed
	$(VENV)/$(BIN)/python -m pip install -q --group docs
	touch $@

docs: $(VENV)/installed-docs
	rm -rf docs/_build
	$(VENV)/$(BIN)/sphinx-build -q -W --keep-going -b html -d docs/_build/doctrees docs $(SITE)
	$(VENV)/$(BIN)/python docs/check_links.py $(SITE)
	@echo "The site is in $(SITE)/index.html"

clean:
	rm -rf $(VENV) $(BENCH) $(DEMO) docs/_build dist build
