"""Rows of jobs are locked in the order of their ids, or skipped, so that two calls never deadlock.

One transaction holds the second of three rows. Another one locks all three in the order of their ids, and the call
under test comes last. A call that locks in another order deadlocks with the second transaction when the first one
releases its row. The table contains the rows in the opposite order, and the call may not use an index, so that only
the statement itself can determine the order.
"""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from django_jobchains.db.ids import new_id
from django_jobchains.models import Job, JobBlocker
from django_jobchains.store import Store
from django_jobchains.store.rows import Effects
from tests.store.contract.ends import chosen
from tests.support.connections import Actor, committing, holding, waiting
from tests.support.jobs import MAIL, alter, claim, database_now, expire, new_job, running_job

pytestmark = [committing, pytest.mark.postgresql]

Ids = Sequence[UUID]
Call = Callable[[Store, Ids], Any]


@pytest.fixture
def ids(store):
    """The ordered ids of three pending jobs, which the table contains in the opposite order."""
    ids = [new_id() for _ in range(3)]
    for id_ in reversed(ids):
        store.jobs.create([new_job(id=id_)])
    return ids


def lock_in_order(ids):
    list(Job.objects.filter(id__in=ids).order_by("id").select_for_update(no_key=True))


def without_indexes(call):
    with connection.cursor() as cursor:
        cursor.execute("SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off")
    return call()


def assert_no_deadlock(ids, call, *, middle=None):
    """Check that a call does not deadlock, and return its result."""
    first = holding(lambda store: store.attempts.lock(middle or ids[1]))
    second = Actor(lambda store: lock_in_order(ids), holds=True).start().until_blocked_or_ended()
    third = waiting(lambda store: without_indexes(lambda: call(store)))
    first.go_on()
    first.result()
    second.until_stopped()
    second.go_on()
    second.result()
    result = third.result()
    assert second.conflicts == third.conflicts == []
    return result


def with_status(status):
    return lambda ids: alter_all(ids, status=status)


def alter_all(ids, **values):
    Job.objects.filter(id__in=ids).update(**values)


def nothing(ids):
    pass


#: Calls about three jobs, and what is done to the jobs before. The test passes the ids in another order.
CALLS = {
    "lock_all": (lambda store, ids: store.attempts.lock_all(ids), nothing),
    "lock_last_jobs": (lambda store, ids: store.last_jobs.lock(ids), nothing),
    "lock_last_jobs, shared": (lambda store, ids: store.last_jobs.lock(ids, shared=True), nothing),
    "cancel": (lambda store, ids: store.chains.cancel(ids, Effects()), nothing),
    "retry": (lambda store, ids: store.chains.retry(ids, Effects()), with_status("failed")),
    "move": (lambda store, ids: store.chains.move(ids, None, 60, Effects()), nothing),
    "delete": (lambda store, ids: store.chains.delete(ids, cascade=False, effects=Effects()), nothing),
    "create, waiting for them": (lambda store, ids: store.jobs.create([new_job(MAIL, blockers=tuple(ids))]), nothing),
}


@pytest.mark.parametrize("name", CALLS)
def test_call_locks_in_the_order_of_ids(store, ids, name):
    call, prepare = CALLS[name]
    prepare(ids)
    assert_no_deadlock(ids, lambda store: call(store, [ids[2], ids[0], ids[1]]))


#: Ends of several attempts. The test passes the attempts in an order that differs from the order of their ids.
ENDS = chosen("finish", "reschedule", "fail", "hand_back", "reap", "renew", "cancel")


@pytest.mark.parametrize("name", ENDS)
def test_calls_that_end_attempts_wait_for_no_row(store, ids, name):
    """A call that waits for no row cannot deadlock."""
    jobs = sorted(claim(store))
    expire(*jobs)
    first = holding(lambda store: store.attempts.lock(ids[1]))
    second = Actor(lambda store: lock_in_order(ids), holds=True).start().until_blocked_or_ended()
    third = Actor(lambda store: without_indexes(lambda: ENDS[name](store, [jobs[2], jobs[0], jobs[1]])), holds=True)
    third.start().until_stopped()  # it has sent all its statements, and holds its locks
    first.go_on()
    first.result()
    third.go_on()
    third.result()
    second.until_stopped()
    second.go_on()
    second.result()
    assert second.conflicts == third.conflicts == []


#: Ends of a chain that three jobs wait for.
ENDS_OF_BLOCKER = chosen("finish", "fail", "finish_locked")


@pytest.mark.parametrize("name", ENDS_OF_BLOCKER)
def test_jobs_that_wait_for_a_chain_are_locked_in_the_order_of_ids(store, name):
    blocker = running_job(store)
    ids = [new_id() for _ in range(3)]
    for id_ in reversed(ids):
        store.jobs.create([new_job(MAIL, id=id_, blockers=(blocker.id,))])
    assert JobBlocker.objects.filter(is_open=True).count() == 3
    assert assert_no_deadlock(ids, lambda store: ENDS_OF_BLOCKER[name](store, [blocker]))


def test_the_end_of_expired_jobs_waits_for_none_of_them(store, ids):
    alter_all(ids, expires_at=database_now())
    expired = assert_no_deadlock(ids, lambda store: store.chains.expire(10, Effects()))
    assert [job.id for job in expired] == ids[2:]  # the others are locked


def test_sweeper_waits_for_no_row(store):
    blocker = running_job(store)
    ids = [new_id() for _ in range(3)]
    for id_ in reversed(ids):
        store.jobs.create([new_job(MAIL, id=id_, blockers=(blocker.id,))])
    alter([blocker], status="completed", output={})
    freed, _ = assert_no_deadlock(ids, lambda store: store.blockers.sweep(10, None, Effects()))
    assert freed == ids[2:]  # the others are locked
