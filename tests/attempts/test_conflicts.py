"""Above READ COMMITTED, a conflict in the statements that lock or complete a job costs no attempt.

For records, ``tests/records/test_conflicts.py`` tests a conflict while they are completed.
"""

from contextlib import suppress
from threading import Event, Thread

import pytest
from django.db import OperationalError, transaction
from django.db.backends.signals import connection_created

from django_jobchains.attempts import outcome
from django_jobchains.models import FailedAttempt, Job
from tests.records.models import Export
from tests.shop.models import Effect
from tests.support.attempts import committed, on_own_connection
from tests.support.connections import is_a_session_waiting
from tests.support.scenario import JOBS, RECORDS, complete, effects, kinds, outside, write
from tests.support.waiting import until

pytestmark = [committed, pytest.mark.postgresql]


@pytest.fixture(autouse=True)
def _repeatable_read():
    def set_level(connection, **kwargs):
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_isolation TO 'repeatable read'")

    connection_created.connect(set_level)
    yield
    connection_created.disconnect(set_level)


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch):
    """Retry at once after a conflict, because the worker of these tests ends when no job is due."""
    monkeypatch.setattr(outcome, "CONFLICT_SECONDS", 0)


def touch(chain):
    Job.objects.filter(id=chain.id).update(crashes=0)


@pytest.fixture
def enqueue(scenario):
    """Enqueue jobs whose completion conflicts up to a number of times, with a write to a job that it frees."""
    dependents, errors = [], []

    def conflicting(jobs):
        errors.append(jobs[0].last_error)

        def function():
            write(jobs, "written")()
            for job in jobs if scenario.kind == "batch" else []:
                job.finish("done")
            if len(errors) <= enqueue.conflicts:
                on_own_connection(touch, dependents[0])

        yield complete(function)
        return "done"

    def enqueue(conflicts):
        enqueue.conflicts = conflicts
        made = scenario.enqueue(conflicting, max_attempts=1)
        dependents.append(scenario.processors.register("waits")(lambda job: None).enqueue(blockers=[made[0]]))
        scenario.run()
        return made

    enqueue.errors = errors
    return enqueue


def test_conflict_while_completing_costs_no_attempt(scenario, enqueue):
    made = enqueue(3)
    assert (scenario.states(), Effect.objects.count()) == ({"completed"}, len(made))
    assert {job.attempt for job in Job.objects.filter(id__in=[chain.id for chain in made])} == {4}
    assert not FailedAttempt.objects.exists()
    assert enqueue.errors[0] is None
    assert all("could not serialize access" in error for error in enqueue.errors[1:])


def test_job_that_conflicts_repeatedly_fails(scenario, enqueue, monkeypatch):
    monkeypatch.setattr(outcome, "MAX_CONFLICTS", 2)
    made = enqueue(100)
    [error] = scenario.errors()
    assert (scenario.states(), effects()) == ({"failed"}, [])
    assert error.startswith("OperationalError: could not serialize access")
    assert {chain.current_job.attempt for chain in made} == {3}


@kinds(*JOBS, *RECORDS)
def test_conflict_while_locking_costs_no_attempt(scenario):
    """The lock conflicts with a transaction that writes the row, and its retry with another one."""
    is_written, is_done = Event(), Event()

    def write_while_awaited(id_):
        for _ in range(2):
            # If the retry is faster than the second transaction, it is this one that conflicts.
            with suppress(OperationalError), transaction.atomic():
                Job.objects.filter(id=id_).update(crashes=0)
                Export.objects.filter(id=id_).update(name="")
                is_written.set()
                until(lambda: is_a_session_waiting() or is_done.is_set())

    def begin(jobs):
        if not is_written.is_set():
            Thread(target=on_own_connection, args=[write_while_awaited, jobs[0].id]).start()
            assert is_written.wait(10)

    def handler(jobs):
        yield outside(lambda: begin(jobs))
        yield complete(is_done.set)

    scenario.enqueue(handler, max_attempts=1)
    scenario.run()
    assert (scenario.states(), scenario.errors()) == ({"completed"}, {None})
    assert not FailedAttempt.objects.exists()


@kinds(*JOBS, *RECORDS)
def test_conflict_in_the_handlers_own_statement_fails_the_attempt(scenario):
    def function():
        Effect.objects.count()
        on_own_connection(lambda: Effect.objects.update(label="changed"))
        Effect.objects.update(label="conflicts")

    Effect.objects.create(job_id=Job().id, label="old")
    scenario.enqueue(lambda jobs: (yield complete(function)))
    scenario.run()
    [error] = scenario.errors()
    assert (scenario.states(), "could not serialize access" in error, effects()) == ({"retried"}, True, ["changed"])
