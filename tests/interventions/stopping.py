"""Handlers that run until their job is cancelled, and then stop in different ways."""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from django.db import IntegrityError

from django_jobchains.exceptions import FailJob, RescheduleJob
from django_jobchains.processors import RunningJob
from tests.shop.models import Effect

Stop = Callable[[RunningJob[Any]], Any]


@dataclass
class Handler:
    """A handler that waits for its abort signal, calls ``stop``, and records what happened.

    ``gate`` lets the test decide when a ``stop`` that ignores the signal continues.
    """

    stop: Stop = lambda job: job.signal.raise_if_aborted()
    started: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    gate: threading.Event = field(default_factory=threading.Event)
    reasons: list[str | None] = field(default_factory=list)
    attempts: list[int] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def __call__(self, job):
        self.attempts.append(job.attempt)
        self.started.set()
        job.signal.wait(60)
        self.reasons.append(job.signal.reason)
        try:
            return self.stop(job)
        except BaseException as error:
            self.errors.append(error)
            raise
        finally:
            self.ended.set()


def _raise(error):
    def stop(job):
        raise error

    return stop


def in_prepare(job):
    with job.prepare():
        job.signal.raise_if_aborted()


def in_complete(job):
    with job.complete():
        Effect.objects.create(job_id=job.id, label="undone")
        job.signal.raise_if_aborted()


def after_complete(job):
    with job.complete():
        Effect.objects.create(job_id=job.id, label="undone")
    raise OSError("no network")


def swallowed(job):
    with suppress(OSError), job.complete():
        raise OSError("no network")
    return "as if nothing had happened"


def unserializable(job):
    return object()


#: Every way to stop without completing the job.
STOPS = {
    "JobAborted": lambda job: job.signal.raise_if_aborted(),
    "an error": _raise(OSError("no network")),
    "a database error": _raise(IntegrityError("twice")),
    "RescheduleJob": _raise(RescheduleJob(delay=0)),
    "FailJob": _raise(FailJob("not wanted any more")),
    "SystemExit": _raise(SystemExit(1)),
    "KeyboardInterrupt": _raise(KeyboardInterrupt()),
    "in prepare": in_prepare,
    "in complete": in_complete,
    "after complete": after_complete,
    "a suppressed error": swallowed,
    "a result that is not JSON": unserializable,
}
