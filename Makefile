# One command per task; each makes its own environment first.
PYTHON ?= python3
VENV := .venv
BENCH := .venv-bench
DEMO := .venv-demo
SITE := docs/_build/html
JOBS ?= 3
MINUTES ?= 60
SEED ?= 0

.PHONY: demo test soak faults check bench docs clean

demo: $(DEMO)/installed
	$(DEMO)/bin/python examples/digits.py

$(VENV)/installed: pyproject.toml
	test -x $(VENV)/bin/python || $(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install -q -U "pip>=25.1"
	$(VENV)/bin/python -m pip install -q -e . --group dev
	touch $@

$(BENCH)/installed: pyproject.toml
	test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	$(BENCH)/bin/python -m pip install -q -U "pip>=25.1"
	$(BENCH)/bin/python -m pip install -q -e . --group bench
	touch $@

$(DEMO)/installed: pyproject.toml
	test -x $(DEMO)/bin/python || $(PYTHON) -m venv $(DEMO)
	$(DEMO)/bin/python -m pip install -q -U "pip>=25.1"
	$(DEMO)/bin/python -m pip install -q -e . --group demo
	touch $@

test: $(VENV)/installed
	$(VENV)/bin/python -m pytest -n $(JOBS) --dist loadgroup

soak: $(VENV)/installed
	$(VENV)/bin/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

faults: $(VENV)/installed
	HEADRACE_FAULT_RUNS=$(or $(RUNS),200) HYPOTHESIS_PROFILE=thorough \
	  $(VENV)/bin/python -m pytest tests/test_faults.py tests/test_processes.py

check: $(VENV)/installed
	$(VENV)/bin/ruff check src tests benchmarks examples
	$(VENV)/bin/ruff format --check src tests benchmarks examples
	$(VENV)/bin/pyright
	$(VENV)/bin/lint-imports

bench: $(BENCH)/installed
	$(BENCH)/bin/python -m benchmarks

$(VENV)/installed-docs: $(VENV)/installed
	$(VENV)/bin/python -m pip install -q --group docs
	touch $@

docs: $(VENV)/installed-docs
	rm -rf docs/_build
	$(VENV)/bin/sphinx-build -q -W --keep-going -b html -d docs/_build/doctrees docs $(SITE)
	$(VENV)/bin/python docs/check_links.py $(SITE)
	@echo "The site is in $(SITE)/index.html"

clean:
	rm -rf $(VENV) $(BENCH) $(DEMO) docs/_build dist build
