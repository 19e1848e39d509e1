"""The statement that completes a job is sent together with COMMIT, unless more statements depend on its result."""

from contextlib import contextmanager
from functools import partial
from threading import Event, Thread

import pytest
from django.db import OperationalError, connection, transaction

from django_jobchains import chains
from django_jobchains.models import Chain
from django_jobchains.store.postgresql.wire import Direct
from tests.shop.models import Effect
from tests.support.attempts import committed, on_own_connection
from tests.support.connections import DEADLINE_SECONDS, holding, is_a_session_waiting, waiting
from tests.support.waiting import until

pytestmark = [committed, pytest.mark.postgresql]


@pytest.fixture
def commits(monkeypatch):
    """The statements that were sent together with COMMIT."""
    sent = []
    commit = Direct.commit

    def record(direct, raw, sql, *args):
        sent.append(sql)
        commit(direct, raw, sql, *args)

    monkeypatch.setattr(Direct, "commit", record)
    return sent


def register_waiting(processors):
    @processors.register("waits", blockers=["completes"])
    def waits(job):
        return "started"

    return waits


def nothing(job):
    pass


def register_completing(
    processors,
    inside=nothing,
    before=nothing,
):
    @processors.register("completes")
    def completes(job):
        before(job)
        with job.complete():
            Effect.objects.create(job_id=job.id, label="written")
            inside(job)
        return "it's \\ done"

    return completes


def test_output_is_stored_unchanged(processors, work, commits):
    chain = register_completing(processors).enqueue()
    work(slots=1)
    assert len(commits) == 1
    assert chain.refresh().output == "it's \\ done"


def test_waiting_job_is_freed(processors, work, commits):
    waits, completes = register_waiting(processors), register_completing(processors)
    chain = completes.enqueue()
    waiting_chain = waits.enqueue(blockers=[chain])
    work(slots=1)
    assert waiting_chain.refresh().output == "started"
    assert not commits


def test_waiting_job_that_the_handler_enqueued_is_freed(processors, work, commits):
    waits = register_waiting(processors)
    completes = register_completing(processors, lambda job: waits.enqueue(blockers=[job.chain_id]))
    completes.enqueue()
    work(slots=1)
    assert Chain.objects.of_type("waits").get().output == "started"
    assert not commits


class Stop:
    """A function that a handler calls to wait for the test."""

    def __init__(self):
        self._is_reached, self._may_continue = Event(), Event()

    def __call__(self, job):
        self._is_reached.set()
        assert self._may_continue.wait(DEADLINE_SECONDS)

    def until_reached(self):
        assert self._is_reached.wait(DEADLINE_SECONDS)

    def release(self):
        self._may_continue.set()


@contextmanager
def working(work):
    worker = Thread(target=on_own_connection, args=[partial(work, slots=1)])
    worker.start()
    yield
    worker.join(DEADLINE_SECONDS)
    assert not worker.is_alive()


def test_job_that_begins_to_wait_before_the_lock_is_freed(processors, work, commits):
    stop = Stop()
    waits, completes = register_waiting(processors), register_completing(processors, before=stop)
    chain = completes.enqueue()
    with working(work):
        stop.until_reached()
        enqueuing = holding(lambda store: waits.enqueue(blockers=[chain]))
        stop.release()
        until(is_a_session_waiting)
        enqueuing.go_on()
        waiting_chain = enqueuing.result()
    assert waiting_chain.refresh().output == "started"
    assert not commits


def test_job_enqueued_after_the_lock_finds_its_blocker_completed(processors, work, commits):
    stop = Stop()
    waits, completes = register_waiting(processors), register_completing(processors, inside=stop)
    chain = completes.enqueue()
    with working(work):
        stop.until_reached()
        enqueuing = waiting(lambda store: waits.enqueue(blockers=[chain]))
        stop.release()
        waiting_chain = enqueuing.result()
    work(slots=1)
    assert len(commits) == 1
    assert waiting_chain.refresh().output == "started"


@pytest.mark.parametrize("change", [chains.cancel, chains.delete])
def test_handler_that_cancels_or_deletes_its_own_chain_does_not_commit_early(processors, work, commits, change):
    register_completing(processors, lambda job: change(job.chain_id)).enqueue()
    work(slots=1)
    assert not commits


@pytest.fixture
def _division_at_commit():
    """Create a deferred trigger that divides by zero, as the store's statement does to prevent the commit."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION divide() RETURNS trigger AS 'BEGIN PERFORM 1 / 0; RETURN NULL; END' LANGUAGE plpgsql"
        )
        cursor.execute(
            "CREATE CONSTRAINT TRIGGER divides AFTER INSERT ON shop_effect DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION divide()"
        )
        yield
        cursor.execute("DROP FUNCTION divide CASCADE")


@pytest.mark.usefixtures("_division_at_commit")
def test_error_of_a_deferred_trigger_rolls_back_the_attempt_and_is_recorded(processors, work, commits):
    called = []
    hook = partial(transaction.on_commit, partial(called.append, "hook"))
    chain = register_completing(processors, lambda job: hook()).enqueue()
    work(slots=1)
    job = chain.refresh().current_job
    assert (job.status, job.attempt) == ("pending", 1)
    assert (job.last_error or "").startswith("DataError: division by zero")
    assert len(commits) == 1
    assert not called
    assert not Effect.objects.exists()


@pytest.mark.parametrize("is_committed", [False, True])
def test_after_a_lost_reply_the_row_decides_whether_the_job_is_completed(
    processors, work, monkeypatch, caplog, is_committed
):
    commit = Direct.commit

    def lose_the_reply(direct, *args):
        if is_committed:
            commit(direct, *args)
        args[0].close()
        raise OperationalError("the reply was lost")

    monkeypatch.setattr(Direct, "commit", lose_the_reply)
    chain = register_completing(processors).enqueue()
    work(slots=1)
    job = chain.refresh().current_job
    assert (job.status, job.attempt) == ("completed" if is_committed else "pending", 1)
    assert Effect.objects.count() == is_committed
    assert ("An error after the commit does not change that" in caplog.text) == is_committed
