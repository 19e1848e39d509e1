# make demo    a shop and its jobs, in this terminal
# make shop    the same shop in a browser, with its worker and a guided tour
# make test    what each change has to pass; one session of it: make oldest, make wheel, ...
# make test-all    the whole matrix, all slow tests and the mutations: before a release, and at the end of a large change
# make quick    the plain tests on SQLite, without those of the admin and of child processes; make sqlite, make postgresql: all tests on that database
# make mutations    breaks the guards in tests/mutations one by one, and checks that the tests notice; a part of test-all
# make fleet    workers behind PgBouncer, on clusters that fail over (PostgreSQL, NATS, Redis), on hosts that are cut off,
#               and after a restore from a backup; as root, on Debian. make fleet_short: the part of it that belongs to make test
# make soak MINUTES=60    work of all kinds, while everything that can fail does: reports what was lost, doubled or exceeded
# make docs    builds the documentation site into .cache/docs, with warnings as errors
# make release REPOSITORY=https://…    builds and checks the files of a release into dist
# make bench   measurements: figures and a page of them go to .cache/bench.json and .cache/bench.md
# make bench-table    the same for the rows of the page's table of limits only, with some peers: in 20 to 30 minutes
# make bench-page    writes docs/explanation/benchmarks.md again, from the figures of the last make bench, or those in
#                    FIGURES: make bench-page FIGURES=".cache/bench.json .cache/more.json"
# make bench-peers    installs the other systems that make bench then measures beside ours
# Another Python: make PYTHON=python3.13 test

PYTHON ?= python3
VENV := .venv
DEMO := .venv-demo
BENCH := .venv-bench
PEERS := .venv-peers
SESSIONS := lint types docs quick slow all_slow newest all_newest oldest all_oldest example wheel browser all_browser fleet fleet_short postgresql sqlite tasks pictures mutations release
NOX = $(VENV)/bin/python -m nox

# Tests start hundreds of processes: what they import is compiled once.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := test
.PHONY: test test-all $(SESSIONS) demo shop soak bench bench-table bench-page bench-peers format clean

# Two sessions at a time, and in each a process of tests for each core: tests wait about as much as they compute.
test: $(VENV)/.ready
	@$(NOX) --parallel 2

test-all: $(VENV)/.ready
	@$(NOX) --parallel 2 --sessions lint types docs all_newest all_oldest all_slow all_browser tasks wheel
	@$(NOX) --session mutations

$(SESSIONS): $(VENV)/.ready
	@$(NOX) --session $@

shop: $(DEMO)/.ready
	@$(DEMO)/bin/python example_project/manage.py open_shop

demo: $(DEMO)/.ready
	@$(DEMO)/bin/python example_project/manage.py demo

MINUTES ?= 60

soak: $(VENV)/.ready
	@$(VENV)/bin/python -m tests.soak --minutes $(MINUTES)

# A new server of the newest version: python -m benchmarks without --own-server measures that of BENCH_DATABASE_URL.
ROUNDS ?= 3
BENCHMARKS = mkdir -p .cache && PATH="$(CURDIR)/$(BENCH)/bin:$$PATH" python -m benchmarks --own-server \
	--rounds $(ROUNDS) --json .cache/bench.json --page .cache/bench.md

bench: $(BENCH)/.ready
	@$(BENCHMARKS) --peers

bench-table: $(BENCH)/.ready
	@$(BENCHMARKS) --table --peers 'graphile-worker*' 'pg-boss*' pgqueuer 'celery prefork*'

FIGURES ?= .cache/bench.json

bench-page: $(BENCH)/.ready
	@$(BENCH)/bin/python -m benchmarks --from $(FIGURES) --page docs/explanation/benchmarks.md

bench-peers: $(BENCH)/.ready
	@$(BENCH)/bin/python -m benchmarks.peers.install

format: $(VENV)/.ready
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

clean:
	rm -rf .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis dist $(VENV) $(DEMO) $(BENCH) $(PEERS)

$(VENV)/.ready: INSTALL = -e '.[all]' --group dev
$(DEMO)/.ready: INSTALL = -e '.[typed,schedules,tasks]'
$(BENCH)/.ready: INSTALL = -e '.[all]' --group bench

%/.ready: pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "django_jobchains needs Python 3.11 or newer: make PYTHON=python3.13 ..." >&2; exit 1; }
	@echo "Preparing $*, which takes a minute the first time ..."
	@$(PYTHON) -m venv $*
	@$*/bin/python -m pip install -qq --disable-pip-version-check --upgrade 'pip>=25.1'
	@$*/bin/python -m pip install -qq --disable-pip-version-check $(INSTALL)
	@touch $@
