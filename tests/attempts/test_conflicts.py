"""Above READ COMMITTED, a conflict in the statements that lock or complete a job costs no attempt."""

from collections.abc import Callable
from functools import partial
from threading import Event, Thread

import pytest
from django.db import connection, transaction
from django.db.backends.signals import connection_created

from django_jobchains.attempts import outcome
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import Processors
from tests.shop.models import Effect
from tests.support.attempts import committed, on_own_connection
from tests.support.connections import is_a_session_waiting
from tests.support.waiting import until

pytestmark = [committed, pytest.mark.postgresql]

Conflict = Callable[[], None]


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


def conflict_with(chain):
    """Return a function that makes the completion conflict, by writing a job that the completion frees."""
    waiting = Processors()

    @waiting.register("waits")
    def waits(job):
        pass

    dependent = waits.enqueue(blockers=[chain])
    return lambda: on_own_connection(write, dependent)


def write(chain):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE django_jobchains_job SET crashes = crashes WHERE id = %s", [chain.id])


def test_conflict_while_completing_costs_no_attempt(processors, work):
    conflicts = []
    errors = []

    @processors.register("completes", max_attempts=1)
    def completes(job):
        errors.append(job.last_error)
        with job.complete():
            Effect.objects.create(job_id=job.id, label="written")
            if job.attempt <= 3:
                conflicts[0]()
            return "done"

    chain = completes.enqueue()
    conflicts.append(conflict_with(chain))
    work()
    assert chain.refresh().output == "done"
    assert Effect.objects.count() == 1
    assert not FailedAttempt.objects.exists()
    assert Job.objects.get(id=chain.id).attempt == 4
    assert errors[0] is None
    assert all("could not serialize access" in str(error) for error in errors[1:])


def test_job_that_conflicts_repeatedly_fails(processors, work, monkeypatch):
    monkeypatch.setattr(outcome, "MAX_CONFLICTS", 2)
    conflicts = []

    @processors.register("completes", max_attempts=1)
    def completes(job):
        with job.complete():
            conflicts[0]()

    chain = completes.enqueue()
    conflicts.append(conflict_with(chain))
    work()
    assert chain.refresh().status == "failed"
    assert FailedAttempt.objects.get().error.startswith("OperationalError: could not serialize access")
    assert Job.objects.get(id=chain.id).attempt == 3


def test_conflict_while_locking_costs_no_attempt(processors, work):
    """The lock conflicts with a transaction that writes the row, and its retry with another one."""
    chains = []
    is_written, is_done = Event(), Event()

    @processors.register("completes", max_attempts=1)
    def completes(job):
        if job.attempt == 1:
            other = Thread(target=on_own_connection, args=[write_while_awaited])
            other.start()
            is_written.wait(10)
        with job.complete():
            is_done.set()
            return "done"

    def is_awaited():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_clear_snapshot()")
        return is_a_session_waiting() or is_done.is_set()

    def write_while_awaited():
        for _ in range(2):
            with transaction.atomic():
                write(chains[0])
                is_written.set()
                until(is_awaited)

    chains.append(completes.enqueue())
    work()
    assert chains[0].refresh().output == "done"
    assert not FailedAttempt.objects.exists()


def test_conflict_in_the_handlers_own_statement_fails_the_attempt(processors, work):
    @processors.register("completes", max_attempts=1)
    def completes(job):
        with job.complete():
            effect = Effect.objects.create(job_id=job.id, label="seen")
            on_own_connection(partial(Effect.objects.update, label="changed"))
            Effect.objects.exclude(id=effect.id).update(label="conflicts")

    Effect.objects.create(job_id=completes.enqueue().id, label="old")
    work()
    assert "could not serialize access" in FailedAttempt.objects.get().error


def test_conflict_undoes_every_job_of_a_batch(processors, work):
    conflicts = []

    @processors.register("completes", batch_limit=5, max_attempts=1)
    def completes(jobs):
        with jobs.complete():
            for job in jobs:
                Effect.objects.create(job_id=job.id, label="written")
                job.finish("done")
            if jobs[0].attempt == 1:
                conflicts[0]()

    enqueued = [completes.enqueue() for _ in range(2)]
    conflicts.append(conflict_with(enqueued[0]))
    work()
    assert [chain.refresh().output for chain in enqueued] == ["done", "done"]
    assert sorted(Effect.objects.values_list("job_id", flat=True)) == sorted(chain.id for chain in enqueued)
    assert not FailedAttempt.objects.exists()
