"""Calls whose query plans are checked, each with a function that creates its rows."""

import time
from datetime import timedelta
from unittest.mock import patch
from uuid import UUID

from django.apps import apps

from django_jobchains.models import Job, JobBlocker
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.store.on_failure import FailureType
from django_jobchains.store.rows import Effects, FinishedJob, LogEntries, NewLogLine, NewProgress
from tests.store.contract.ends import chosen
from tests.support.jobs import MAIL, SHIP, claim, create, failed_try, finished, new_job, next_job


class AlertingRegistry:
    """A registry in which every failed job enqueues a chain."""

    def failure_type(self, type_name):
        return FailureType("shop.alert", "default", 0)


def fail_with_alert(store, jobs):
    with patch.object(apps.get_app_config("django_jobchains"), "registry", AlertingRegistry()):
        store.attempts.fail([failed_try(job) for job in jobs])


#: Calls that write attempts.
ENDS = {
    **chosen("finish", "hand_back", "renew", "reschedule", "reschedule_as_asked", "fail"),
    "fail, with alert": fail_with_alert,
}


def pending(store, count):
    """Create chains that are at their second job, and whose first job had failed once."""
    ids = create(store, count)
    jobs = claim(store, count, types=[SHIP])
    store.attempts.reschedule([failed_try(job) for job in jobs])
    again = claim(store, count, types=[SHIP])
    store.attempts.finish([finished(job, None, next_job(job)) for job in again])
    assert sorted(job.id for job in again) == sorted(ids)
    return ids


def awaited(store, count, **changes):
    """Create chains that each have a dependent, and one job that depends on all of them."""
    ids = pending(store, count)
    waits = [(id_,) for id_ in ids] + [tuple(ids)]
    store.jobs.create([new_job(MAIL, blockers=blockers, delay_seconds=60, **changes) for blockers in waits])
    return ids


def awaited_with_policy_fail(store, count):
    return awaited(store, count, on_blocker_failure="fail")


def with_blockers(store, count):
    """Create chains that each wait for another one."""
    blockers = pending(store, count)
    return [row.id for row in store.jobs.create([new_job(MAIL, blockers=(id_,), delay_seconds=60) for id_ in blockers])]


def stuck(store, count):
    """Create blocked jobs whose blockers are completed."""
    waiting = with_blockers(store, count)
    Job.objects.filter(chain_id__in=JobBlocker.objects.filter(job_id__in=waiting).values("blocker_id")).update(
        status="completed"
    )
    return waiting


def last_jobs(store, ids):
    return [last_job.job_id for last_job in store.last_jobs.read(ids).values()]


def cancelled(store, count):
    ids = with_blockers(store, count) + pending(store, count)
    store.chains.cancel(ids, Effects())
    return last_jobs(store, ids)


def with_limits(store, count):
    """Create chains that have expired, half of which wait for another one."""
    late = create(store, count - count // 2, expires_seconds=-1.0)
    return late + [
        create(store, 1, MAIL, blockers=(id_,), expires_seconds=-1.0)[0] for id_ in pending(store, count // 2)
    ]


def last_pending(store, count):
    return last_jobs(store, pending(store, count))


def write_log(store, ids):
    rows = Job.objects.filter(pk__in=ids).values_list("id", "lease_number", "attempt")
    lines = [NewLogLine(position, time.monotonic(), 20, "line", None) for position in (0, 1)]
    entries = [LogEntries(*row, lines, NewProgress(0.5, "half", time.monotonic()), range(1, 2)) for row in rows]
    assert store.logs.write(entries) == set()


def finish(store, ids):
    rows = Job.objects.filter(pk__in=ids).values_list("id", "lease_number")
    assert len(store.attempts.finish([FinishedJob(*row) for row in rows])) == len(ids)


def running(store, count):
    return [job.id for job in claimed(store, create(store, count))]


def running_and_awaited(store, count):
    return [job.id for job in claimed(store, awaited(store, count))]


def claimed(store, ids):
    jobs = [job for job in claim(store) if job.chain_id in ids]
    assert len(jobs) == len(ids)
    return jobs


def awaited_by_many(store, count):
    [id_] = pending(store, 1)
    store.jobs.create([new_job(MAIL, blockers=(id_,), delay_seconds=60) for _ in range(count)])
    return [id_]


def complete(store, ids):
    for last_job in store.last_jobs.lock(ids).values():
        store.chains.complete(last_job, None, None, Effects())


def sweep(store, ids):
    freed, _ = store.blockers.sweep(len(ids), UUID(int=min(ids).int - 1), Effects())
    assert sorted(freed) == sorted(ids)


def deduplicated(scope, window=None):
    def call(store, ids):
        """Enqueue jobs with keys of chains that wait, of chains that have ended, and with new keys."""
        keys = [(type_name, f"{new}key {n + 1}") for n in range(len(ids)) for type_name, new in KINDS]
        jobs = [keyed(type_name, key, scope, window) for type_name, key in keys]
        assert any(row.is_deduplicated for row in store.jobs.create(jobs))

    return call


def replaced(store, ids):
    """Enqueue jobs with the keys of chains that have not started, whose values they replace."""
    keys = [Deduplicate(f"waiting {n}", replace=("input", "run_at")) for n in range(len(ids))]
    jobs = [new_job(deduplicate=key, deduplication_key=key.key) for key in keys]
    assert all(row.is_replaced for row in store.jobs.create(jobs))


KINDS = ((SHIP, ""), ("shop.unserved", ""), (MAIL, "new "))


def keyed(type_name, key, scope, window):
    return new_job(type_name, deduplicate=Deduplicate(key, scope, window), deduplication_key=key)


CALLS = {
    "last_jobs": (pending, lambda store, ids: store.last_jobs.read(ids)),
    "lock_last_jobs": (pending, lambda store, ids: store.last_jobs.lock(ids)),
    "lock_last_jobs, shared": (pending, lambda store, ids: store.last_jobs.lock(ids, shared=True)),
    "finish": (running, finish),
    "write_log": (running, write_log),
    "finish, awaited": (running_and_awaited, finish),
    "complete, awaited": (awaited_by_many, complete),
    "cancel": (pending, lambda store, ids: store.chains.cancel(ids, Effects())),
    "cancel, awaited": (awaited, lambda store, ids: store.chains.cancel(ids, Effects())),
    "cancel, awaited with policy fail": (
        awaited_with_policy_fail,
        lambda store, ids: store.chains.cancel(ids, Effects()),
    ),
    "expire": (with_limits, lambda store, ids: store.chains.expire(len(ids), Effects())),
    "retry": (cancelled, lambda store, ids: store.chains.retry(ids, Effects())),
    "move": (last_pending, lambda store, ids: store.chains.move(ids, None, 60, Effects())),
    "delete": (pending, lambda store, ids: store.chains.delete(ids, cascade=False, effects=Effects())),
    "delete, cascade": (with_blockers, lambda store, ids: store.chains.delete(ids, cascade=True, effects=Effects())),
    "sweep": (with_blockers, lambda store, ids: store.blockers.sweep(len(ids), None, Effects())),
    "sweep, stuck": (stuck, sweep),
    "create, with blockers": (
        pending,
        lambda store, ids: store.jobs.create([new_job(MAIL, blockers=(id_,)) for id_ in ids]),
    ),
    "create, with many blockers": (
        pending,
        lambda store, ids: store.jobs.create([new_job(MAIL, blockers=tuple(ids), on_blocker_failure="fail")]),
    ),
    "create, deduplicated": (lambda store, count: [UUID(int=0)] * count, deduplicated("incomplete")),
    "create, deduplicated for ever": (lambda store, count: [UUID(int=0)] * count, deduplicated("any")),
    "create, deduplicated for an hour": (
        lambda store, count: [UUID(int=0)] * count,
        deduplicated("incomplete_or_recent", timedelta(hours=1)),
    ),
    "create, replaced": (
        lambda store, count: [
            row.id for row in store.jobs.create([keyed(SHIP, f"waiting {n}", "incomplete", None) for n in range(count)])
        ],
        replaced,
    ),
}
