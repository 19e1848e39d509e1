# make demo    a shop and its jobs, in this terminal
# make test    everything that has to be green; one leg of it: make oldest, make wheel, ...
# make sqlite, make postgresql    all tests on that database
# make bench   measurements: figures and a page of them go to .cache/bench.json and .cache/bench.md
# make bench-peers    installs the other systems that make bench then measures beside ours
# Another Python: make PYTHON=python3.13 test

PYTHON ?= python3
VENV := .venv
DEMO := .venv-demo
BENCH := .venv-bench
PEERS := .venv-peers
LEGS := lint types slow newest oldest example wheel browser
ALONE := postgresql sqlite pictures
MATRIX = $(VENV)/bin/python -m tests.matrix

# Tests start hundreds of processes: what they import is compiled once.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := test
.PHONY: test $(LEGS) $(ALONE) demo bench bench-peers format clean

test: $(VENV)/.ready
	@$(MATRIX) $(LEGS)

$(LEGS) $(ALONE): $(VENV)/.ready
	@$(MATRIX) $@

demo: $(DEMO)/.ready
	@$(DEMO)/bin/python example_project/manage.py demo

bench: $(BENCH)/.ready
	@mkdir -p .cache
	@PATH="$(CURDIR)/$(BENCH)/bin:$$PATH" python -m benchmarks --peers --json .cache/bench.json --page .cache/bench.md

bench-peers: $(BENCH)/.ready
	@$(BENCH)/bin/python -m benchmarks.peers.install

format: $(VENV)/.ready
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist $(VENV) $(DEMO) $(BENCH) $(PEERS)

$(VENV)/.ready: INSTALL = -e '.[all]' --group dev
$(DEMO)/.ready: INSTALL = -e '.[typed]'
$(BENCH)/.ready: INSTALL = -e '.[all]' --group bench

%/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "django_jobchains needs Python 3.11 or newer: make PYTHON=python3.13 ..." >&2; exit 1; }
	@echo "Preparing $*, which takes a minute the first time ..."
	@$(PYTHON) -m venv $*
	@$*/bin/python -m pip install -qq --disable-pip-version-check --upgrade 'pip>=25.1'
	@$*/bin/python -m pip install -qq --disable-pip-version-check $(INSTALL)
	@touch $@
