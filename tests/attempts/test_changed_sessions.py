"""A handler that changes its database session affects neither its own output nor the next jobs."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from django.db import connection

from django_jobchains.models import Chain
from django_jobchains.processors import Batch, Processors, RunningJob
from django_jobchains.store import get_store
from tests.support.attempts import committed

pytestmark = [committed, pytest.mark.postgresql]

#: Contains characters that another encoding or quoting rule would change.
OUTPUT = "it's \\ grün"


def execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)


def nothing() -> None:
    pass


def enqueue_three(
    processors: Processors, *, before: Callable[[], None] = nothing, inside: Callable[[], None] = nothing
) -> list[Chain]:
    @processors.register("changes")
    def changes(job: RunningJob[Any]) -> str:
        before()
        with job.complete():
            inside()
        return OUTPUT

    return [changes.enqueue() for _ in range(3)]


def assert_completed(chains: list[Chain], output: Any = OUTPUT) -> None:
    for chain in chains:
        job = chain.refresh().current_job
        assert (job.status, job.attempt, job.output) == ("completed", 1, output), job.last_error


@pytest.mark.parametrize("statement", ["DISCARD ALL", "DEALLOCATE ALL", "SET search_path = pg_catalog"])
def test_changes_before_complete(processors, work, statement):
    chains = enqueue_three(processors, before=partial(execute, statement))
    work(slots=1)
    assert_completed(chains)


@pytest.mark.parametrize(
    "statement",
    ["DEALLOCATE ALL", "SET client_encoding = 'LATIN1'", "SET standard_conforming_strings = off", "SET TIME ZONE -3"],
)
def test_changes_in_complete(processors, work, statement):
    chains = enqueue_three(processors, inside=partial(execute, statement))
    work(slots=1)
    assert_completed(chains)


def test_changes_while_statements_are_planned_again(processors, work, monkeypatch):
    """All statements of a transaction have plans of one age, so that its first one fails if they are gone."""

    def change() -> None:
        execute("DEALLOCATE ALL")
        monkeypatch.setattr(get_store().db, "_plan_generation", 1)

    chains = enqueue_three(processors, inside=change)
    work(slots=1)
    assert_completed(chains)


def test_changes_in_a_batch(processors, work):
    @processors.register("changes", batch_limit=1)
    def changes(jobs: Batch[Any]) -> None:
        with jobs.complete():
            execute("DEALLOCATE ALL")

    chains = [changes.enqueue() for _ in range(3)]
    work(slots=1)
    assert_completed(chains, None)
