"""django-tasks with its database backend: one task at a time. A chain is a task that enqueues the next step."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management import call_command
from django_tasks import task

from benchmarks import times
from benchmarks.peers.catalogue import STEPS
from benchmarks.peers.programs.clients import Client


@task()
def value() -> None:
    times.append()


@task()
def step(number: int) -> None:
    if number < STEPS:
        step.enqueue(number + 1)
    else:
        times.append()


def prepare() -> None:
    call_command("migrate", verbosity=0)


def worker() -> None:
    call_command("db_worker", "--no-startup-delay", verbosity=0, reload=False)


@contextmanager
def client() -> Iterator[Client]:
    yield Client(enqueue=value.enqueue, start_chain=lambda: step.enqueue(1))
