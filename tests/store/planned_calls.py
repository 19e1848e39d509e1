"""The calls whose plans are looked at, each with what it is about, made before."""

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from django_jobchains.deduplication import Deduplicate
from django_jobchains.models import Job, JobBlocker
from django_jobchains.store import ClaimedJob, Effects, FinishedJob, Said, SaidLine, SaidProgress, Store
from tests.store.jobs import MAIL, SHIP, claim, create, failed_try, finished, lease, new_job, next_job

#: What writes attempts.
ENDS: dict[str, Callable[[Store, list[ClaimedJob]], Any]] = {
    "finish": lambda store, jobs: store.finish([finished(job) for job in jobs]),
    "hand_back": lambda store, jobs: store.hand_back([lease(job) for job in jobs]),
    "renew": lambda store, jobs: store.renew([lease(job) for job in jobs]),
    "reschedule": lambda store, jobs: store.reschedule([failed_try(job) for job in jobs]),
    "fail": lambda store, jobs: store.fail([failed_try(job) for job in jobs]),
}

Ids = list[UUID]
Prepare = Callable[[Store, int], Ids]


def pending(store: Store, count: int) -> Ids:
    """Chains that are at their second job, of which each had failed once."""
    ids = create(store, count)
    jobs = claim(store, count, types=[SHIP])
    store.reschedule([failed_try(job) for job in jobs])
    again = claim(store, count, types=[SHIP])
    store.finish([finished(job, None, next_job(job)) for job in again])
    assert sorted(job.id for job in again) == sorted(ids)
    return ids


def awaited(store: Store, count: int, **changes: Any) -> Ids:
    """Chains that a job of another chain waits for, and one job for all of them."""
    ids = pending(store, count)
    waits = [(id_,) for id_ in ids] + [tuple(ids)]
    store.create([new_job(MAIL, blockers=blockers, delay_seconds=60, **changes) for blockers in waits])
    return ids


def awaited_by_who_fails(store: Store, count: int) -> Ids:
    return awaited(store, count, on_blocker_failure="fail")


def with_blockers(store: Store, count: int) -> Ids:
    """Chains of which each waits for another."""
    blockers = pending(store, count)
    return [row.id for row in store.create([new_job(MAIL, blockers=(id_,), delay_seconds=60) for id_ in blockers])]


def stuck(store: Store, count: int) -> Ids:
    """Blocked jobs that nobody freed."""
    waiting = with_blockers(store, count)
    Job.objects.filter(chain_id__in=JobBlocker.objects.filter(job_id__in=waiting).values("blocker_id")).update(
        status="completed"
    )
    return waiting


def last_jobs(store: Store, ids: Ids) -> Ids:
    return [tail.job_id for tail in store.tails(ids).values()]


def cancelled(store: Store, count: int) -> Ids:
    ids = with_blockers(store, count) + pending(store, count)
    store.cancel(ids, Effects())
    return last_jobs(store, ids)


def last_pending(store: Store, count: int) -> Ids:
    return last_jobs(store, pending(store, count))


def say(store: Store, ids: Ids) -> None:
    rows = Job.objects.filter(pk__in=ids).values_list("id", "lease_number", "attempt")
    lines = [SaidLine(position, time.monotonic(), 20, "said", None) for position in (0, 1)]
    spoken = [Said(*row, lines, SaidProgress(0.5, "half", time.monotonic()), range(1, 2)) for row in rows]
    assert store.say(spoken) == set()


def finish(store: Store, ids: Ids) -> None:
    rows = Job.objects.filter(pk__in=ids).values_list("id", "lease_number")
    assert len(store.finish([FinishedJob(*row) for row in rows])) == len(ids)


def running(store: Store, count: int) -> Ids:
    return [job.id for job in claimed(store, create(store, count))]


def running_and_awaited(store: Store, count: int) -> Ids:
    return [job.id for job in claimed(store, awaited(store, count))]


def claimed(store: Store, ids: Ids) -> list[Any]:
    jobs = [job for job in claim(store) if job.chain_id in ids]
    assert len(jobs) == len(ids)
    return jobs


def awaited_by_many(store: Store, count: int) -> Ids:
    [id_] = pending(store, 1)
    store.create([new_job(MAIL, blockers=(id_,), delay_seconds=60) for _ in range(count)])
    return [id_]


def complete(store: Store, ids: Ids) -> None:
    for tail in store.lock_tails(ids).values():
        store.complete(tail, None, None, Effects())


def sweep(store: Store, ids: Ids) -> None:
    freed, _ = store.sweep(len(ids), UUID(int=min(ids).int - 1), Effects())
    assert sorted(freed) == sorted(ids)


def deduplicated(scope: Any) -> Callable[[Store, Ids], Any]:
    def call(store: Store, ids: Ids) -> None:
        """Of keys that are taken by chains which wait, of such that have ended, and of new ones."""
        jobs = [keyed(type_name, f"{new}key {n + 1}", scope) for n in range(len(ids)) for type_name, new in KINDS]
        assert any(row.is_deduplicated for row in store.create(jobs))

    return call


KINDS = ((SHIP, ""), ("shop.unserved", ""), (MAIL, "new "))


def keyed(type_name: str, key: str, scope: Any) -> Any:
    return new_job(type_name, deduplicate=Deduplicate(key, scope), deduplication_key=key)


CALLS: dict[str, tuple[Prepare, Callable[[Store, Ids], Any]]] = {
    "tails": (pending, lambda store, ids: store.tails(ids)),
    "lock_tails": (pending, lambda store, ids: store.lock_tails(ids)),
    "lock_tails, shared": (pending, lambda store, ids: store.lock_tails(ids, shared=True)),
    "finish": (running, finish),
    "say": (running, say),
    "finish, awaited": (running_and_awaited, finish),
    "complete, awaited": (awaited_by_many, complete),
    "cancel": (pending, lambda store, ids: store.cancel(ids, Effects())),
    "cancel, awaited": (awaited, lambda store, ids: store.cancel(ids, Effects())),
    "cancel, awaited by who fails": (awaited_by_who_fails, lambda store, ids: store.cancel(ids, Effects())),
    "retry": (cancelled, lambda store, ids: store.retry(ids, Effects())),
    "move": (last_pending, lambda store, ids: store.move(ids, None, 60, Effects())),
    "delete": (pending, lambda store, ids: store.delete(ids, cascade=False, effects=Effects())),
    "delete, cascade": (with_blockers, lambda store, ids: store.delete(ids, cascade=True, effects=Effects())),
    "sweep": (with_blockers, lambda store, ids: store.sweep(len(ids), None, Effects())),
    "sweep, stuck": (stuck, sweep),
    "create, with blockers": (
        pending,
        lambda store, ids: store.create([new_job(MAIL, blockers=(id_,)) for id_ in ids]),
    ),
    "create, with many blockers": (
        pending,
        lambda store, ids: store.create([new_job(MAIL, blockers=tuple(ids), on_blocker_failure="fail")]),
    ),
    "create, deduplicated": (lambda store, count: [UUID(int=0)] * count, deduplicated("incomplete")),
    "create, deduplicated for ever": (lambda store, count: [UUID(int=0)] * count, deduplicated("any")),
}
