"""A secret in everything that user code can raise or report appears in no log record and on no terminal."""

import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.color import no_style
from django.db import transaction

from django_jobchains.deduplication import Deduplicate
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Backoff, Processors, Registry, RunningJob
from django_jobchains.telemetry import add_sink, remove_sink
from django_jobchains.worker import Worker
from django_jobchains.worker.console import Console
from tests.attempts.test_bad_input import overwrite_input
from tests.attempts.work import WITHOUT_WAKE_UPS, committed

pytest.importorskip("pydantic")
pytestmark = committed

SECRET = "c4n4ry"
SAID = f"no answer,\npassword={SECRET}"


class Broken(Exception):
    """An error whose message has a secret in it, as those of database drivers and HTTP clients do."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where}: {SAID}")


def fail(where: str) -> Any:
    raise Broken(where)


class BrokenBackoff(Backoff):
    def seconds(self, attempt: int) -> float:
        return fail("backoff")  # type: ignore[no-any-return]


@dataclass
class Login:
    user: str
    password: int


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """The log as a file has it, with tracebacks."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger = logging.getLogger("django_jobchains")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    yield written
    logger.setLevel(level)
    logger.removeHandler(handler)


@pytest.fixture
def processors() -> Processors:
    processors = Processors()

    @processors.register("handler", retry_if=lambda error: fail("retry_if"), backoff=BrokenBackoff())
    def handler(job: RunningJob[Any]) -> None:
        job.log(SAID, password=SECRET, text=SAID)
        job.set_progress(0.5, SAID.replace("\n", " "))
        fail("handler")

    @processors.register("on_commit")
    def on_commit(job: RunningJob[Any]) -> None:
        with job.complete():
            transaction.on_commit(lambda: fail("on_commit"))

    @processors.register("on_abort")
    def on_abort(job: RunningJob[Any]) -> None:
        job.signal.abort("timed_out")
        job.signal.on_abort(lambda: fail("on_abort"))  # it is called at once

    @processors.register("login")
    def login(job: RunningJob[Login]) -> None: ...

    return processors


@pytest.fixture
def terminal(settings: Any, processors: Processors, log: io.StringIO) -> str:
    """What the terminal of a worker showed while it ran one job of each kind."""
    settings.JOBCHAINS = WITHOUT_WAKE_UPS
    registry, shown = Registry(), io.StringIO()
    registry.add(processors)
    types = registry.job_types()
    key = Deduplicate(f"import password={SECRET}")
    types["handler"].enqueue({"password": SECRET, "text": SAID}, deduplicate=key)
    types["on_commit"].enqueue()
    types["on_abort"].enqueue()
    overwrite_input(types["login"].enqueue(Login("a", 1)), f'{{"user": "a", "password": "{SECRET}"}}')
    worker = Worker(slots=1, registry=registry)
    console = Console(lambda text: shown.write(f"{text}\n"), no_style(), verbosity=3, worker=worker.id)
    add_sink(console)
    try:
        worker.run_until_idle()
    finally:
        remove_sink(console)
    return shown.getvalue()


def test_the_log_of_a_worker(terminal: str, log: io.StringIO) -> None:
    written = log.getvalue()
    for where in ("handler", "retry_if", "backoff", "on_commit", "on_abort"):
        assert f"Broken: {where}: no answer" in written
    assert "Not a Login" in written
    assert "Traceback" in written
    assert SECRET not in written


def test_the_log_has_no_line_that_an_error_forges(terminal: str, log: io.StringIO) -> None:
    assert not [line for line in log.getvalue().splitlines() if line.startswith("password")]


def test_the_terminal_of_a_worker(terminal: str) -> None:
    assert "handler: no answer" in terminal
    assert SECRET not in terminal


@pytest.mark.parametrize("options", [[], ["--verbose"], ["--format=json"]])
def test_what_shows_a_chain(terminal: str, options: list[str]) -> None:
    assert FailedAttempt.objects.filter(error__contains=SECRET).exists()
    shown = "".join(called("show", str(job.chain_id), *options) for job in Job.objects.all())
    assert "import password=" in shown
    assert "Not a Login" in shown
    assert SECRET not in shown


@pytest.mark.parametrize("options", [[], ["--jobs"], ["--format=json"]])
def test_what_lists_chains(terminal: str, options: list[str]) -> None:
    listed = called("list", *options)
    assert "login" in listed
    assert SECRET not in listed


def called(*words: str) -> str:
    out = io.StringIO()
    call_command("jobchains", *words, stdout=out)
    return out.getvalue()
