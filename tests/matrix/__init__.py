"""The legs of ``make test``: ``python -m tests.matrix LEG…``. Standard library only.

lint        ruff check, ruff format, import-linter
types       mypy --strict
example     the example project's own tests
sqlite      the suite in the primary environment (.venv), on the Python's own SQLite
postgresql  the suite in the primary environment, on the PostgreSQL at hand, else on one of our own
newest      newest Python and Django to be found, on their SQLite and on PostgreSQL 18
oldest      Python 3.11 with the lowest versions pyproject.toml admits, on SQLite 3.37 and on PostgreSQL 14
wheel       the built wheel runs a job in an empty environment
browser     the example project and its admin, driven in Chromium
pictures    the same run writes the documentation's screenshots

What has to be fetched comes through pip and npm, into .cache; a browser, if there is none, through apt-get. What cannot
be had is reported as NOT RUN, which is a failure when ``CI`` is set. Two suites at once keep the machine busy, so a few
tests that fail are run once more by themselves: those that pass then are UNSTEADY, which the end of the run names. Mend
them.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache"


class Failed(Exception):
    """A leg ran and is red; ``code`` is what its command exited with."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class Unsteady(Exception):
    """Tests failed beside another suite, and passed when they were run again by themselves."""


class Unavailable(Exception):
    """A leg could not run: something it needs cannot be had on this machine."""
