"""Secrets in anything that user code raises or reports are neither logged nor printed."""

import io
import logging
from dataclasses import dataclass

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

SECRET = "c4n4ry"
TEXT = f"no answer,\npassword={SECRET}"


class Broken(Exception):
    """An error with a secret in its message, like those of database drivers and HTTP clients."""


def fail(where):
    raise Broken(f"{where}: {TEXT}")


class BrokenBackoff(Backoff):
    def seconds(self, attempt):
        return fail("backoff")


@dataclass
class Login:
    user: str
    password: int


@pytest.fixture
def registry():
    """Types whose handlers and policies fail in each place where user code is called."""
    processors, registry = Processors(), Registry()

    @processors.register("handler", retry_if=lambda error: fail("retry_if"), backoff=BrokenBackoff())
    def handler(job):
        job.log(TEXT, password=SECRET, text=TEXT)
        job.set_progress(0.5, TEXT.replace("\n", " "))
        fail("handler")

    @processors.register("on_commit")
    def on_commit(job):
        with job.complete():
            transaction.on_commit(lambda: fail("on_commit"))

    @processors.register("on_abort")
    def on_abort(job):
        job.signal.abort("timed_out")
        job.signal.on_abort(lambda: fail("on_abort"))  # called immediately

    @processors.register("login")
    def login(job: RunningJob[Login]): ...

    registry.add(processors)
    return registry


@committed
def test_neither_the_log_nor_the_terminal_of_a_worker_contains_a_secret(settings, registry, caplog):
    settings.JOBCHAINS = WITHOUT_WAKE_UPS
    types, shown, written = registry.job_types(), io.StringIO(), logging.Formatter("%(levelname)s %(message)s")
    types["handler"].enqueue({"password": SECRET}, deduplicate=Deduplicate(f"import password={SECRET}"))
    types["on_commit"].enqueue()
    types["on_abort"].enqueue()
    overwrite_input(types["login"].enqueue(Login("a", 1)), f'{{"user": "a", "password": "{SECRET}"}}')
    worker = Worker(slots=1, registry=registry)
    console = TerminalSink(lambda text: shown.write(f"{text}\n"), no_style(), verbosity=3, worker=worker.id)
    add_sink(console)
    try:
        with caplog.at_level(logging.DEBUG, "django_jobchains"):
            worker.run_until_idle()
    finally:
        remove_sink(console)
    log = "\n".join(map(written.format, caplog.records))  # with tracebacks, as a file would contain it
    for where in ("handler", "retry_if", "backoff", "on_commit", "on_abort"):
        assert f"Broken: {where}: no answer" in log
    assert "Not a Login" in log
    assert "Traceback" in log
    assert SECRET not in log
    assert not [line for line in log.splitlines() if line.startswith("password")], "an error has forged a line"
    assert "handler: no answer" in shown.getvalue()
    assert SECRET not in shown.getvalue()
