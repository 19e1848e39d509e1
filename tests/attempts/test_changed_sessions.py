"""A handler that changes its database session affects neither its own output nor the next jobs."""

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


@pytest.fixture
def check_completed(processors, work):
    """Return a function that lets three jobs change their session, and checks that they are completed."""

    def check(*, before=lambda: None, inside=lambda: None):
        @processors.register("changes")
        def changes(job):
            before()
            with job.complete():
                inside()
            return OUTPUT

        chains = [changes.enqueue() for _ in range(3)]
        work(slots=1)
        for chain in chains:
            job = chain.refresh().current_job
            assert (job.status, job.attempt, job.output) == ("completed", 1, OUTPUT), job.last_error

    return check


@pytest.mark.parametrize("statement", ["DISCARD ALL", "DEALLOCATE ALL", "SET search_path = pg_catalog"])
def test_changes_before_complete(check_completed, statement):
    check_completed(before=lambda: execute(statement))


@pytest.mark.parametrize(
    "statement",
    ["DEALLOCATE ALL", "SET client_encoding = 'LATIN1'", "SET standard_conforming_strings = off", "SET TIME ZONE -3"],
)
def test_changes_in_complete(check_completed, statement):
    check_completed(inside=lambda: execute(statement))


def test_changes_while_statements_are_planned_again(check_completed, monkeypatch):
    """All statements of a transaction have plans of one age, so that its first one fails if they are gone."""

    def change():
        execute("DEALLOCATE ALL")
        monkeypatch.setattr(get_store().db, "_plan_generation", 1)

    check_completed(inside=change)


def test_changes_in_a_batch(processors, work):
    @processors.register("changes", batch_limit=1)
    def changes(jobs):
        with jobs.complete():
            execute("DEALLOCATE ALL")

    chains = [changes.enqueue() for _ in range(3)]
    work(slots=1)
    assert [(chain.refresh().status, chain.current_job.attempt) for chain in chains] == [("completed", 1)] * 3
