"""Secrets in anything that user code raises or reports are neither logged nor printed."""

import io
import logging
from dataclasses import dataclass
from typing import Any

import pytest
from django.core.management.color import no_style
from django.db import transaction

from django_jobchains.processors import Backoff, Processors, Registry, RunningJob
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.telemetry import add_sink, remove_sink
from django_jobchains.telemetry.terminal import TerminalSink
from django_jobchains.worker import Worker
from tests.attempts.test_bad_input import overwrite_input
from tests.support.attempts import WITHOUT_WAKE_UPS, committed

pytest.importorskip("pydantic")
pytestmark = committed

SECRET = "c4n4ry"
TEXT = f"no answer,\npassword={SECRET}"


class Broken(Exception):
    """An error with a secret in its message, like those of database drivers and HTTP clients."""

    def __init__(self, where: str) -> None:
        super().__init__(f"{where}: {TEXT}")


def fail(where: str) -> Any:
    raise Broken(where)


class BrokenBackoff(Backoff):
    def seconds(self, attempt: int) -> float:
        return fail("backoff")


@dataclass
class Login:
    user: str
    password: int


@pytest.fixture
def log():
    """Return the log, with tracebacks, as a file would contain it."""
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
def processors():
    processors = Processors()

    @processors.register("handler", retry_if=lambda error: fail("retry_if"), backoff=BrokenBackoff())
    def handler(job: RunningJob[Any]) -> None:
        job.log(TEXT, password=SECRET, text=TEXT)
        job.set_progress(0.5, TEXT.replace("\n", " "))
        fail("handler")

    @processors.register("on_commit")
    def on_commit(job: RunningJob[Any]) -> None:
        with job.complete():
            transaction.on_commit(lambda: fail("on_commit"))

    @processors.register("on_abort")
    def on_abort(job: RunningJob[Any]) -> None:
        job.signal.abort("timed_out")
        job.signal.on_abort(lambda: fail("on_abort"))  # called immediately

    @processors.register("login")
    def login(job: RunningJob[Login]) -> None: ...

    return processors


@pytest.fixture
def terminal(settings, processors, log):
    """Return what the terminal showed while a worker ran one job of each type."""
    settings.JOBCHAINS = WITHOUT_WAKE_UPS
    registry, shown = Registry(), io.StringIO()
    registry.add(processors)
    types = registry.job_types()
    key = Deduplicate(f"import password={SECRET}")
    types["handler"].enqueue({"password": SECRET, "text": TEXT}, deduplicate=key)
    types["on_commit"].enqueue()
    types["on_abort"].enqueue()
    overwrite_input(types["login"].enqueue(Login("a", 1)), f'{{"user": "a", "password": "{SECRET}"}}')
    worker = Worker(slots=1, registry=registry)
    console = TerminalSink(lambda text: shown.write(f"{text}\n"), no_style(), verbosity=3, worker=worker.id)
    add_sink(console)
    try:
        worker.run_until_idle()
    finally:
        remove_sink(console)
    return shown.getvalue()


def test_the_log_of_a_worker_contains_no_secret(terminal, log):
    written = log.getvalue()
    for where in ("handler", "retry_if", "backoff", "on_commit", "on_abort"):
        assert f"Broken: {where}: no answer" in written
    assert "Not a Login" in written
    assert "Traceback" in written
    assert SECRET not in written


def test_an_error_cannot_forge_a_line_of_the_log(terminal, log):
    assert not [line for line in log.getvalue().splitlines() if line.startswith("password")]


def test_the_terminal_of_a_worker_shows_no_secret(terminal):
    assert "handler: no answer" in terminal
    assert SECRET not in terminal
