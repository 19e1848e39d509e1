import io
import json
import sys
from dataclasses import dataclass

import pytest
from django.core.management import CommandError, call_command

from django_jobchains import testing
from django_jobchains.processors import Backoff, Lease, Processors, RunningJob
from tests.support.chains import mail, ship


@dataclass(frozen=True)
class Done:
    """The output of a call, its notes on stderr, its exit code, and its error message."""

    out: str
    notes: str
    code: int
    error: str

    @property
    def json(self):
        return json.loads(self.out)

    @property
    def lines(self):
        return self.out.splitlines()


@pytest.fixture
def clock():
    with testing.clock() as clock:
        yield clock


@pytest.fixture
def run(monkeypatch):
    """Call ``manage.py jobchains`` in this process, in a terminal of this width, with this standard input."""

    def run(*words, width=None, stdin="", **options):
        monkeypatch.setenv("COLUMNS", str(width or ""))
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        out, errors = io.StringIO(), io.StringIO()
        code, error = 0, ""
        try:
            call_command("jobchains", *map(str, words), stdout=out, stderr=errors, **options)
        except CommandError as problem:
            code, error = problem.returncode, str(problem)
        return Done(out.getvalue(), errors.getvalue(), code, error)

    return run


@pytest.fixture(autouse=True)
def registry(registry):
    """A registry with two declared types that nobody handles, and three processors."""
    registry.declared = {ship.name: ship, mail.name: mail}
    registry.add(part := Processors(backoff=Backoff(1, 2, 8, 0), queue="bank"))

    @part.register("shop.charge", continues_with=["shop.receipt"], max_attempts=3, lease=Lease(30), priority=5)
    def charge(job: RunningJob[int]) -> int:
        return job.input

    receipt = {"entry": False, "mode": "atomic", "queue": "post", "fail_on": ValueError}
    part.register("shop.receipt", **receipt)(lambda job: None)
    part.register("shop.plain")(lambda job: {})
    return registry
