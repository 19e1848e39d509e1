"""Rows of jobs are locked in the order of their ids, or not waited for: so two calls never wait for each other.

One transaction holds the middle one of three rows, a second one locks all of them in the order of their ids, and the
call under test comes third. A call that begins at the other end deadlocks with the second when the first lets go. The
rows lie in the table in the opposite order, and the call may use no index, so that nothing but the statement itself
says in which order it locks.
"""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from django_jobchains.ids import new_id
from django_jobchains.models import Job, JobBlocker
from django_jobchains.policies import Backoff
from django_jobchains.store import ClaimedJob, Effects, Store
from tests.store.connections import Actor, committing, holding, waiting
from tests.store.jobs import MAIL, alter, claim, expire, failed_try, finished, lease, new_job, running_job

pytestmark = [committing, pytest.mark.postgresql]

Ids = Sequence[UUID]
Call = Callable[[Store, Ids], Any]


@pytest.fixture
def ids(store: Store) -> list[UUID]:
    """Of three pending jobs, in their order; the table has them in the opposite one."""
    ids = [new_id() for _ in range(3)]
    for id_ in reversed(ids):
        store.create([new_job(id=id_)])
    return ids


def lock_in_order(ids: Ids) -> None:
    list(Job.objects.filter(id__in=ids).order_by("id").select_for_update(no_key=True))


def without_indexes(call: Callable[[], Any]) -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SET enable_indexscan = off; SET enable_bitmapscan = off; SET enable_indexonlyscan = off")
    return call()


def assert_no_deadlock(ids: Ids, call: Callable[[Store], Any], *, middle: UUID | None = None) -> Any:
    """Returns what the call returned."""
    first = holding(lambda store: store.lock(middle or ids[1]))
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


def with_status(status: str) -> Callable[[Ids], None]:
    return lambda ids: alter_all(ids, status=status)


def alter_all(ids: Ids, **values: Any) -> None:
    Job.objects.filter(id__in=ids).update(**values)


def nothing(ids: Ids) -> None:
    pass


#: Calls about three jobs, in an order that is not that of their ids, and what is done to the jobs before.
CALLS: dict[str, tuple[Call, Callable[[Ids], None]]] = {
    "lock_all": (lambda store, ids: store.lock_all(ids), nothing),
    "lock_tails": (lambda store, ids: store.lock_tails(ids), nothing),
    "lock_tails, shared": (lambda store, ids: store.lock_tails(ids, shared=True), nothing),
    "cancel": (lambda store, ids: store.cancel(ids, Effects()), nothing),
    "retry": (lambda store, ids: store.retry(ids, Effects()), with_status("failed")),
    "move": (lambda store, ids: store.move(ids, None, 60, Effects()), nothing),
    "delete": (lambda store, ids: store.delete(ids, cascade=False, effects=Effects()), nothing),
    "create, waiting for them": (lambda store, ids: store.create([new_job(MAIL, blockers=tuple(ids))]), nothing),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_locks_in_the_order_of_ids(store: Store, ids: list[UUID], name: str) -> None:
    call, prepare = CALLS[name]
    prepare(ids)
    assert_no_deadlock(ids, lambda store: call(store, [ids[2], ids[0], ids[1]]))


#: Ends of several attempts, in an order that is not that of their ids.
ENDS: dict[str, Callable[[Store, Sequence[ClaimedJob]], Any]] = {
    "finish": lambda store, jobs: store.finish([finished(job) for job in jobs]),
    "reschedule": lambda store, jobs: store.reschedule([failed_try(job) for job in jobs]),
    "fail": lambda store, jobs: store.fail([failed_try(job) for job in jobs]),
    "hand_back": lambda store, jobs: store.hand_back([lease(job) for job in jobs]),
    "reap": lambda store, jobs: store.reap(10, Backoff(), 10),
    "renew": lambda store, jobs: store.renew([lease(job) for job in jobs]),
    "cancel": lambda store, jobs: store.cancel([job.id for job in jobs], Effects()),
}


@pytest.mark.parametrize("name", ENDS)
def test_what_ends_attempts_waits_for_no_row(store: Store, ids: list[UUID], name: str) -> None:
    """So it cannot deadlock, whatever others do. Both ends are locked, by a transaction that waits for the middle."""
    jobs = sorted(claim(store))
    expire(*jobs)
    first = holding(lambda store: store.lock(ids[1]))
    second = Actor(lambda store: lock_in_order(ids), holds=True).start().until_blocked_or_ended()
    third = Actor(lambda store: without_indexes(lambda: ENDS[name](store, [jobs[2], jobs[0], jobs[1]])), holds=True)
    third.start().until_stopped()  # it has been through all of its statements, and holds the locks that it took
    first.go_on()
    first.result()
    third.go_on()
    third.result()
    second.until_stopped()
    second.go_on()
    second.result()
    assert second.conflicts == third.conflicts == []


#: Ends of a chain that three jobs wait for.
SETTLES: dict[str, Callable[[Store, ClaimedJob], Any]] = {
    "finish": lambda store, job: store.finish([finished(job)]),
    "fail": lambda store, job: store.fail([failed_try(job)]),
    "finish, locked": lambda store, job: finish_locked(store, job),
}


def finish_locked(store: Store, job: ClaimedJob) -> Any:
    with store.transaction():
        store.lock(job.id)
        return store.finish([finished(job)], is_locked=True)


@pytest.mark.parametrize("name", SETTLES)
def test_the_jobs_that_wait_for_a_chain_are_locked_in_the_order_of_ids(store: Store, name: str) -> None:
    blocker = running_job(store)
    ids = [new_id() for _ in range(3)]
    for id_ in reversed(ids):
        store.create([new_job(MAIL, id=id_, blockers=(blocker.id,))])
    assert JobBlocker.objects.filter(is_open=True).count() == 3
    assert assert_no_deadlock(ids, lambda store: SETTLES[name](store, blocker))


def test_the_sweeper_waits_for_no_row(store: Store) -> None:
    blocker = running_job(store)
    ids = [new_id() for _ in range(3)]
    for id_ in reversed(ids):
        store.create([new_job(MAIL, id=id_, blockers=(blocker.id,))])
    alter([blocker], status="completed", output={})
    freed, _ = assert_no_deadlock(ids, lambda store: store.sweep(10, None, Effects()))
    assert freed == ids[2:]  # the others are locked
