"""A handler that changes its database session affects neither its own output nor the next jobs."""

from functools import partial

import pytest
from django.db import connection

from django_jobchains.store import get_store
from tests.support.attempts import committed

pytestmark = [committed, pytest.mark.postgresql]

#: Contains characters that another encoding or quoting rule would change.
OUTPUT = "it's \\ grün"


def execute(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)


def nothing():
    pass


def enqueue_three(processors, *, before=nothing, inside=nothing):
    @processors.register("changes")
    def changes(job):
        before()
        with job.complete():
            inside()
        return OUTPUT

    return [changes.enqueue() for _ in range(3)]


def assert_completed(chains, output=OUTPUT):
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

    def change():
        execute("DEALLOCATE ALL")
        monkeypatch.setattr(get_store().db, "_plan_generation", 1)

    chains = enqueue_three(processors, inside=change)
    work(slots=1)
    assert_completed(chains)


def test_changes_in_a_batch(processors, work):
    @processors.register("changes", batch_limit=1)
    def changes(jobs):
        with jobs.complete():
            execute("DEALLOCATE ALL")

    chains = [changes.enqueue() for _ in range(3)]
    work(slots=1)
    assert_completed(chains, None)
