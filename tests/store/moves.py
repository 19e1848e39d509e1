"""How tests make each move of the table of statuses, from any status."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_jobchains.exceptions import DuplicateJobId, JobAlreadyCompleted, JobNotCompletable, JobNotRunnable
from django_jobchains.models import Job
from django_jobchains.policies import Backoff
from django_jobchains.statuses import Status
from django_jobchains.store import ClaimedJob, Effects, NewJob, Store
from tests.store.jobs import (
    MAIL,
    alter,
    claim,
    create,
    database_now,
    expire,
    failed_try,
    finished,
    lease,
    link,
    new_job,
    next_job,
    running_job,
    stored,
)

MAX_CRASHES = 3

Call = Callable[[Store, ClaimedJob], Any]


def create_again(store: Store, job: ClaimedJob) -> Any:
    with pytest.raises(DuplicateJobId), transaction.atomic():
        store.create([new_job(id=job.id)])


def renew(store: Store, job: ClaimedJob) -> Any:
    """The renewed ones: ``renew`` itself names the lost."""
    return {job.key} - set(store.renew([lease(job)]).lost)


def reap(store: Store, job: ClaimedJob) -> Any:
    return store.reap(10, Backoff(), MAX_CRASHES)


def complete(store: Store, job: ClaimedJob, continuation: NewJob | None = None) -> bool:
    try:
        store.complete(store.lock_tails([job.chain_id])[job.chain_id], '"done"', continuation, Effects())
    except (JobAlreadyCompleted, JobNotCompletable):
        return False
    return True


def cancel(store: Store, job: ClaimedJob) -> Any:
    return store.cancel([job.chain_id], Effects())


def retry(store: Store, job: ClaimedJob) -> Any:
    return store.retry([job.id], Effects())


def move(store: Store, job: ClaimedJob) -> bool:
    try:
        store.move([job.id], database_now() + timedelta(days=1), 0, Effects())
    except JobNotRunnable:
        return False
    return True


def is_stopped(store: Store, job: ClaimedJob) -> None:
    """It was asked to stop."""
    alter([job], cancel_requested_at=database_now())


def is_crashing_for_good(store: Store, job: ClaimedJob) -> None:
    alter([job], crashes=MAX_CRASHES - 1)


def waits(store: Store, job: ClaimedJob) -> None:
    link(job, *create(store, 1, MAIL, delay_seconds=60))


def waits_for_a_failed_chain(store: Store, job: ClaimedJob) -> None:
    """And fails with it."""
    [blocker] = create(store, 1, MAIL)
    link(job, blocker)
    Job.objects.filter(pk=blocker).update(status="failed")
    alter([job], on_blocker_failure="fail")


@dataclass(frozen=True)
class Move:
    """How a test makes a move: a call that returns something when it was made, and what has to be so before."""

    method: str
    call: Call
    after: Call = lambda store, job: None
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.method


MOVES = (
    Move("create", create_again),
    Move("claim", lambda store, job: claim(store)),
    Move("renew", renew),
    Move("finish", lambda store, job: store.finish([finished(job)])),
    Move("finish", lambda store, job: store.finish([finished(job, None, next_job(job))]), name="finish_and_continue"),
    Move("reschedule", lambda store, job: store.reschedule([failed_try(job)])),
    Move("fail", lambda store, job: store.fail([failed_try(job)])),
    Move("hand_back", lambda store, job: store.hand_back([lease(job)])),
    Move("reap", reap),
    Move("reap", reap, is_crashing_for_good, "reap_for_the_last_time"),
    Move("renew", renew, is_stopped, "renew_when_stopped"),
    Move("finish", lambda store, job: store.finish([finished(job)]), is_stopped, "finish_when_stopped"),
    Move("reschedule", lambda store, job: store.reschedule([failed_try(job)]), is_stopped, "reschedule_when_stopped"),
    Move("fail", lambda store, job: store.fail([failed_try(job)]), is_stopped, "fail_when_stopped"),
    Move("hand_back", lambda store, job: store.hand_back([lease(job)]), is_stopped, "hand_back_when_stopped"),
    Move("reap", reap, is_stopped, "reap_when_stopped"),
    Move("complete", complete),
    Move("complete", complete, is_stopped, "complete_when_stopped"),
    Move("complete", complete, waits, "complete_when_waiting"),
    Move("complete", lambda store, job: complete(store, job, next_job(job)), name="complete_and_continue"),
    Move("cancel", cancel),
    Move("cancel", cancel, waits, "cancel_when_waiting"),
    Move("retry", retry),
    Move("retry", retry, waits, "retry_when_waiting"),
    Move("retry", retry, waits_for_a_failed_chain, "retry_when_a_blocker_failed"),
    Move("move", move),
)

#: The rows that only show where an attempt was asked to stop, or a job waits: of these moves each must be seen.
TARGETS: dict[str, set[str]] = {
    "reschedule": {"pending"},
    "reschedule_when_stopped": {"cancelled"},
    "fail": {"failed"},
    "fail_when_stopped": {"cancelled"},
    "hand_back": {"pending"},
    "hand_back_when_stopped": {"cancelled"},
    "reap": {"pending"},
    "reap_for_the_last_time": {"failed"},
    "reap_when_stopped": {"cancelled"},
    "finish_when_stopped": {"completed"},
    "retry": {"pending"},
    "retry_when_waiting": {"blocked"},
    "retry_when_a_blocker_failed": {"failed"},
}


def job_with_status(store: Store, status: Status, after: Call = lambda store, job: None) -> ClaimedJob:
    """A job that only its status keeps from any move: it is due, leased, and its lease ran out."""
    job = running_job(store)
    expire(job)
    alter([job], status=status)
    after(store, job)
    return job


# Jobs that are created


def created_plainly(store: Store) -> str:
    return stored(*create(store)).status


def created_with_an_open_blocker(store: Store) -> str:
    return stored(*create(store, blockers=tuple(create(store, 1, MAIL)))).status


def created_by_an_attempt_asked_to_stop(store: Store) -> str:
    job = running_job(store)
    cancel(store, job)
    continuation = next_job(job)
    store.finish([finished(job, None, continuation)])
    return stored(continuation.id).status


CREATIONS: dict[str, Callable[[Store], str]] = {
    "pending": created_plainly,
    "blocked": created_with_an_open_blocker,
    "cancelled": created_by_an_attempt_asked_to_stop,
}


# Jobs that are freed, which is what the end of a blocker does to those that wait for it


@dataclass(frozen=True)
class Freeing:
    """An end of a blocker, of a job with this ``on_blocker_failure``, and what becomes of it."""

    name: str
    end: Call
    policy: str
    target: str

    def __str__(self) -> str:
        return f"{self.name}_{self.policy}"


def finish_blocker(store: Store, job: ClaimedJob) -> Any:
    assert store.finish([finished(job)])


def fail_blocker(store: Store, job: ClaimedJob) -> Any:
    assert store.fail([failed_try(job)])


def stop_blocker(store: Store, job: ClaimedJob) -> Any:
    cancel(store, job)
    assert store.reschedule([failed_try(job)]) == {job.key: "cancelled"}


def reap_blocker(store: Store, job: ClaimedJob) -> Any:
    expire(job)
    assert [reaped.status for reaped in store.reap(1, Backoff(), 1)] == ["failed"]


def cancel_blocker(store: Store, job: ClaimedJob) -> Any:
    assert store.hand_back([lease(job)])
    assert cancel(store, job)


def sweep(store: Store, job: ClaimedJob) -> Any:
    """Of a blocker that completed past the store, so that nobody freed who waited."""
    alter([job], status="completed")
    store.sweep(100, None, Effects())


ENDS: dict[str, tuple[Call, bool]] = {
    "finish": (finish_blocker, True),
    "complete": (complete, True),
    "sweep": (sweep, True),
    "fail": (fail_blocker, False),
    "reschedule": (stop_blocker, False),
    "reap": (reap_blocker, False),
    "cancel": (cancel_blocker, False),
}
FREEINGS = [
    Freeing(name, end, policy, "failed" if policy == "fail" and not is_good else "pending")
    for name, (end, is_good) in ENDS.items()
    for policy in ("wait", "fail", "run")
    if is_good or policy != "wait"
]


def waiting_with_status(store: Store, status: Status, policy: str) -> tuple[ClaimedJob, ClaimedJob]:
    """A job that only its status keeps from being freed, and the running job it waits for."""
    dependent = job_with_status(store, status)
    alter([dependent], leased_until=database_now() + timedelta(days=1), on_blocker_failure=policy)
    create(store, 1, MAIL)
    [blocker] = claim(store, 1, types=[MAIL])
    link(dependent, blocker.id)
    return dependent, blocker
