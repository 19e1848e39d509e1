"""django-q2 with its database broker and its own chains."""

from collections.abc import Iterator
from contextlib import contextmanager

from django.core.management import call_command
from django_q.tasks import async_chain, async_task

from benchmarks import times
from benchmarks.peers.catalogue import STEPS
from benchmarks.peers.programs.clients import Client


def value() -> None:
    times.append()


def step() -> None:
    """Run one of the steps before the last one."""


def prepare() -> None:
    call_command("migrate", verbosity=0)


def worker() -> None:
    call_command("qcluster", verbosity=0)


@contextmanager
def client() -> Iterator[Client]:
    chain = [(f"{__name__}.step",)] * (STEPS - 1) + [(f"{__name__}.value",)]
    yield Client(
        enqueue=lambda: async_task(f"{__name__}.value"),
        start_chain=lambda: async_chain(list(chain)),
    )
