"""Middleware for tests, which records calls, swallows errors, or fails."""

from contextlib import contextmanager
from typing import Any

from django.db import connection

from django_jobchains.middleware import Middleware
from django_jobchains.processors import Backoff, Processors, RunningJob

Job = RunningJob[Any]


class AllHooks(Middleware):
    """One context manager for all three hooks."""

    def around_handler(self, job):
        return self.around("handler", job)

    def around_prepare(self, job):
        return self.around("prepare", job)

    def around_complete(self, job):
        return self.around("complete", job)

    def around(self, phase, job):
        raise NotImplementedError


class Recording(AllHooks):
    def __init__(self, name, seen):
        self.name = name
        self.seen = seen

    @contextmanager
    def around(self, phase, job):
        transaction = " in a transaction" if connection.in_atomic_block else ""
        self.seen.append(f"> {self.name} {phase}{transaction}")
        try:
            yield
        except BaseException as error:
            self.seen.append(f"< {self.name} {phase}: {type(error).__name__}")
            raise
        self.seen.append(f"< {self.name} {phase}")


class Swallowing(AllHooks):
    def __init__(self, phase):
        self.phase = phase

    @contextmanager
    def around(self, phase, job):
        try:
            yield
        except BaseException:
            if phase != self.phase:
                raise


class Failing(AllHooks):
    """Fails in one phase: when it is called, entered, or left."""

    def __init__(self, phase, when, error):
        self.place = (phase, when)
        self.error = error

    def around(self, phase, job):
        self._fail(phase, "called")
        return self._entered(phase)

    @contextmanager
    def _entered(self, phase):
        self._fail(phase, "entered")
        yield
        self._fail(phase, "left")

    def _fail(self, *place):
        if place == self.place:
            raise self.error


def processors_with(*middleware):
    """Return processors with middleware whose jobs are retried after 100 seconds, which is after the test."""
    return Processors(backoff=Backoff(initial_seconds=100, jitter=0), middleware=middleware)
