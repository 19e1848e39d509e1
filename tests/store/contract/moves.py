"""How tests make each transition in the table of statuses, from any status."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from django_jobchains.declare.policies import Backoff
from django_jobchains.exceptions import DuplicateJobId, JobAlreadyCompleted, JobNotCompletable, JobNotRunnable
from django_jobchains.models import Job
from django_jobchains.statuses import Status
from django_jobchains.store import Store
from django_jobchains.store.rows import ClaimedJob, Effects, NewJob
from tests.support.jobs import (
    MAIL,
    MAX_CRASHES,
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

Call = Callable[[Store, ClaimedJob], Any]


def create_again(store: Store, job: ClaimedJob) -> Any:
    with pytest.raises(DuplicateJobId), transaction.atomic():
        store.jobs.create([new_job(id=job.id)])


def renew(store: Store, job: ClaimedJob) -> Any:
    """Return the renewed leases. ``renew`` itself returns the lost ones."""
    return {job.key} - set(store.leases.renew([lease(job)]).lost)


def reap(store: Store, job: ClaimedJob) -> Any:
    return store.leases.reap(10, Backoff(), MAX_CRASHES)


def complete(store: Store, job: ClaimedJob, continuation: NewJob | None = None) -> bool:
    try:
        store.chains.complete(store.last_jobs.lock([job.chain_id])[job.chain_id], '"done"', continuation, Effects())
    except (JobAlreadyCompleted, JobNotCompletable):
        return False
    return True


def cancel(store: Store, job: ClaimedJob) -> Any:
    return store.chains.cancel([job.chain_id], Effects())


def retry(store: Store, job: ClaimedJob) -> Any:
    return store.chains.retry([job.id], Effects())


def move(store: Store, job: ClaimedJob) -> bool:
    try:
        store.chains.move([job.id], database_now() + timedelta(days=1), 0, Effects())
    except JobNotRunnable:
        return False
    return True


def ask_to_stop(store: Store, job: ClaimedJob) -> None:
    """Mark the job as one that was asked to stop."""
    alter([job], cancel_requested_at=database_now())


def use_up_crashes(store: Store, job: ClaimedJob) -> None:
    alter([job], crashes=MAX_CRASHES - 1)


def add_blocker(store: Store, job: ClaimedJob) -> None:
    link(job, *create(store, 1, MAIL, delay_seconds=60))


def add_failed_blocker(store: Store, job: ClaimedJob) -> None:
    """Make the job wait for a chain that has failed, with a policy to fail with it."""
    [blocker] = create(store, 1, MAIL)
    link(job, blocker)
    Job.objects.filter(pk=blocker).update(status="failed")
    alter([job], on_blocker_failure="fail")


@dataclass(frozen=True)
class Move:
    """A call that makes a transition and returns a true value if it did, and a call that prepares the job for it."""

    method: str
    call: Call
    before: Call = lambda store, job: None
    name: str = ""

    def __str__(self) -> str:
        return self.name or self.method


MOVES = (
    Move("create", create_again),
    Move("claim", lambda store, job: claim(store)),
    Move("renew", renew),
    Move("finish", lambda store, job: store.attempts.finish([finished(job)])),
    Move(
        "finish",
        lambda store, job: store.attempts.finish([finished(job, None, next_job(job))]),
        name="finish_and_continue",
    ),
    Move("reschedule", lambda store, job: store.attempts.reschedule([failed_try(job)])),
    Move(
        "reschedule",
        lambda store, job: store.attempts.reschedule([failed_try(job, is_failure=False)]),
        name="reschedule_as_asked",
    ),
    Move("fail", lambda store, job: store.attempts.fail([failed_try(job)])),
    Move("hand_back", lambda store, job: store.attempts.hand_back([job.key])),
    Move("reap", reap),
    Move("reap", reap, use_up_crashes, "reap_for_the_last_time"),
    Move("renew", renew, ask_to_stop, "renew_when_stopped"),
    Move("finish", lambda store, job: store.attempts.finish([finished(job)]), ask_to_stop, "finish_when_stopped"),
    Move(
        "reschedule",
        lambda store, job: store.attempts.reschedule([failed_try(job)]),
        ask_to_stop,
        "reschedule_when_stopped",
    ),
    Move("fail", lambda store, job: store.attempts.fail([failed_try(job)]), ask_to_stop, "fail_when_stopped"),
    Move("hand_back", lambda store, job: store.attempts.hand_back([job.key]), ask_to_stop, "hand_back_when_stopped"),
    Move("reap", reap, ask_to_stop, "reap_when_stopped"),
    Move("complete", complete),
    Move("complete", complete, ask_to_stop, "complete_when_stopped"),
    Move("complete", complete, add_blocker, "complete_when_waiting"),
    Move("complete", lambda store, job: complete(store, job, next_job(job)), name="complete_and_continue"),
    Move("cancel", cancel),
    Move("cancel", cancel, add_blocker, "cancel_when_waiting"),
    Move("retry", retry),
    Move("retry", retry, add_blocker, "retry_when_waiting"),
    Move("retry", retry, add_failed_blocker, "retry_when_a_blocker_failed"),
    Move("move", move),
)

#: The targets of moves that depend on whether the job was asked to stop or waits.
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


def job_with_status(store: Store, status: Status, before: Call = lambda store, job: None) -> ClaimedJob:
    """Return a job that every move could change if its status allowed it: due, leased, and with an expired lease."""
    job = running_job(store)
    expire(job)
    alter([job], status=status)
    before(store, job)
    return job


# Created jobs


def created_plainly(store: Store) -> str:
    return stored(*create(store)).status


def created_with_an_open_blocker(store: Store) -> str:
    return stored(*create(store, blockers=tuple(create(store, 1, MAIL)))).status


def created_by_an_attempt_asked_to_stop(store: Store) -> str:
    job = running_job(store)
    cancel(store, job)
    continuation = next_job(job)
    store.attempts.finish([finished(job, None, continuation)])
    return stored(continuation.id).status


CREATIONS: dict[str, Callable[[Store], str]] = {
    "pending": created_plainly,
    "blocked": created_with_an_open_blocker,
    "cancelled": created_by_an_attempt_asked_to_stop,
}


# Jobs that are freed by the end of their blocker


@dataclass(frozen=True)
class Freeing:
    """An end of a blocker, the ``on_blocker_failure`` of the waiting job, and the resulting status of that job."""

    name: str
    end: Call
    policy: str
    target: str

    def __str__(self) -> str:
        return f"{self.name}_{self.policy}"


def finish_blocker(store: Store, job: ClaimedJob) -> Any:
    assert store.attempts.finish([finished(job)])


def fail_blocker(store: Store, job: ClaimedJob) -> Any:
    assert store.attempts.fail([failed_try(job)])


def stop_blocker(store: Store, job: ClaimedJob) -> Any:
    cancel(store, job)
    assert store.attempts.reschedule([failed_try(job)]) == {job.key: "cancelled"}


def stop_continuing_blocker(store: Store, job: ClaimedJob) -> Any:
    """Complete a job that was asked to stop, so that its continuation is cancelled."""
    cancel(store, job)
    assert store.attempts.finish([finished(job, None, next_job(job))])


def finish_locked_blocker(store: Store, job: ClaimedJob) -> Any:
    """Finish the job as ``job.complete()`` does."""
    with store.db.transaction():
        assert store.attempts.lock(job.id)
        assert store.attempts.finish([finished(job)], is_locked=True)


def reap_blocker(store: Store, job: ClaimedJob) -> Any:
    expire(job)
    assert [reaped.status for reaped in store.leases.reap(1, Backoff(), 1)] == ["failed"]


def cancel_blocker(store: Store, job: ClaimedJob) -> Any:
    assert store.attempts.hand_back([job.key])
    assert cancel(store, job)


def sweep(store: Store, job: ClaimedJob) -> Any:
    """Complete the blocker with SQL, so that only the sweeper can free the waiting job."""
    alter([job], status="completed")
    store.blockers.sweep(100, None, Effects())


ENDS: dict[str, tuple[Call, bool]] = {
    "finish": (finish_blocker, True),
    "finish_locked": (finish_locked_blocker, True),
    "complete": (complete, True),
    "sweep": (sweep, True),
    "fail": (fail_blocker, False),
    "reschedule": (stop_blocker, False),
    "continue": (stop_continuing_blocker, False),
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
    """Return a job that could be freed if its status allowed it, and the running job that it waits for."""
    dependent = job_with_status(store, status)
    alter([dependent], leased_until=database_now() + timedelta(days=1), on_blocker_failure=policy)
    create(store, 1, MAIL)
    [blocker] = claim(store, 1, types=[MAIL])
    link(dependent, blocker.id)
    return dependent, blocker
