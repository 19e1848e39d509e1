"""django-ox: a backend of Django's tasks with handlers in threads. A chain is a task that enqueues the next step."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management import call_command
from django.tasks import task
from django_ox.bulk import enqueue_many

from benchmarks import times
from benchmarks.peers.catalogue import SLOTS, STEPS
from benchmarks.peers.programs.clients import Client


@task
def value() -> None:
    times.append()


@task
def step(number: int) -> None:
    if number < STEPS:
        step.enqueue(number + 1)
    else:
        times.append()


def prepare() -> None:
    call_command("migrate", verbosity=0)


def worker() -> None:
    call_command("ox_worker", "--concurrency", str(SLOTS), verbosity=0)


@contextmanager
def client() -> Iterator[Client]:
    yield Client(
        enqueue=value.enqueue,
        enqueue_many=lambda count: enqueue_many(value, [((), {})] * count),
        start_chain=lambda: step.enqueue(1),
    )
