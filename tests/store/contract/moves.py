"""How tests make each transition in the table of statuses, from any status."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.db import transaction

from django_jobchains.declare.policies import Backoff
from django_jobchains.exceptions import DuplicateJobId, JobAlreadyCompleted, JobNotCompletable, JobNotRunnable
from django_jobchains.models import Job
from django_jobchains.store import Store
from django_jobchains.store.rows import ClaimedJob, Effects
from tests.store.contract.ends import ENDS as ENDS_OF_ATTEMPTS
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


def create_again(store, job):
    with pytest.raises(DuplicateJobId), transaction.atomic():
        store.jobs.create([new_job(id=job.id)])


def renew(store, job):
    """Return the renewed leases. ``renew`` itself returns the lost ones."""
    return {job.key} - set(store.leases.renew([lease(job)]).lost)


def complete(store, job, continuation=None):
    try:
        store.chains.complete(store.last_jobs.lock([job.chain_id])[job.chain_id], '"done"', continuation, Effects())
    except (JobAlreadyCompleted, JobNotCompletable):
        return False
    return True


def move(store, job):
    try:
        store.chains.move([job.id], database_now() + timedelta(days=1), 0, Effects())
    except JobNotRunnable:
        return False
    return True


def ask_to_stop(store, job):
    """Mark the job as one that was asked to stop."""
    alter([job], cancel_requested_at=database_now())


def use_up_crashes(store, job):
    alter([job], crashes=MAX_CRASHES - 1)


def let_expire(store, job):
    """Let a job that has not started have expired."""
    alter([job], attempt=0, expires_at=database_now() - timedelta(minutes=1))


def add_blocker(store, job):
    link(job, *create(store, 1, MAIL, delay_seconds=60))


def add_failed_blocker(store, job):
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

    def __str__(self):
        return self.name or self.method


CALLS = {
    "create": create_again,
    "claim": lambda store, job: claim(store),
    "renew": renew,
    **{
        name: lambda store, job, end=ENDS_OF_ATTEMPTS[name]: end(store, [job])
        for name in ("finish", "reschedule", "fail", "hand_back")
    },
    "reap": lambda store, job: store.leases.reap(10, Backoff(), MAX_CRASHES),
    "complete": complete,
    "cancel": lambda store, job: store.chains.cancel([job.chain_id], Effects()),
    "retry": lambda store, job: store.chains.retry([job.id], Effects()),
    "move": move,
}
CONTINUATIONS = {
    "finish": lambda store, job: store.attempts.finish([finished(job, None, next_job(job))]),
    "complete": lambda store, job: complete(store, job, next_job(job)),
    "reschedule": lambda store, job: store.attempts.reschedule([failed_try(job, is_failure=False)]),
}
STOPPABLE = ("renew", "finish", "reschedule", "fail", "hand_back", "reap", "complete")
MOVES = (
    *(Move(name, call) for name, call in CALLS.items()),
    *(Move(name, call, name=f"{name}_and_go_on") for name, call in CONTINUATIONS.items()),
    *(Move(name, CALLS[name], ask_to_stop, f"{name}_when_stopped") for name in STOPPABLE),
    *(Move(name, CALLS[name], add_blocker, f"{name}_when_waiting") for name in ("complete", "cancel", "retry")),
    Move("reap", CALLS["reap"], use_up_crashes, "reap_for_the_last_time"),
    Move("expire", lambda store, job: store.chains.expire(10, Effects()), let_expire),
    Move("retry", CALLS["retry"], add_failed_blocker, "retry_when_a_blocker_failed"),
)

#: The targets of moves that depend on whether the job was asked to stop or waits.
TARGETS = {
    "reschedule": {"pending"},
    "reschedule_and_go_on": {"pending"},
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


def job_with_status(store, status, before=lambda store, job: None):
    """Return a job that every move could change if its status allowed it: due, leased, and with an expired lease."""
    job = running_job(store)
    expire(job)
    alter([job], status=status)
    before(store, job)
    return job


# Created jobs


def created_by_an_attempt_asked_to_stop(store):
    job = running_job(store)
    store.chains.cancel([job.chain_id], Effects())
    continuation = next_job(job)
    store.attempts.finish([finished(job, None, continuation)])
    return stored(continuation.id).status


CREATIONS = {
    "pending": lambda store: stored(*create(store)).status,
    "blocked": lambda store: stored(*create(store, blockers=tuple(create(store, 1, MAIL)))).status,
    "cancelled": created_by_an_attempt_asked_to_stop,
}


# Jobs that are freed by the end of their blocker


class Freeing(NamedTuple):
    """An end of a blocker, the ``on_blocker_failure`` of the waiting job, and the resulting status of that job."""

    name: str
    end: Call
    policy: str
    target: str

    def __str__(self):
        return f"{self.name}_{self.policy}"


def finish_blocker(store, job):
    assert store.attempts.finish([finished(job)])


def fail_blocker(store, job):
    assert store.attempts.fail([failed_try(job)])


def stop_blocker(store, job):
    store.chains.cancel([job.chain_id], Effects())
    assert store.attempts.reschedule([failed_try(job)]) == {job.key: "cancelled"}


def stop_continuing_blocker(store, job):
    """Complete a job that was asked to stop, so that its continuation is cancelled."""
    store.chains.cancel([job.chain_id], Effects())
    assert store.attempts.finish([finished(job, None, next_job(job))])


def finish_locked_blocker(store, job):
    """Finish the job as ``job.complete()`` does."""
    with store.db.transaction():
        assert store.attempts.lock(job.id)
        assert store.attempts.finish([finished(job)], is_locked=True)


def reap_blocker(store, job):
    expire(job)
    assert [reaped.status for reaped in store.leases.reap(1, Backoff(), 1)] == ["failed"]


def cancel_blocker(store, job):
    assert store.attempts.hand_back([job.key])
    assert store.chains.cancel([job.chain_id], Effects())


def sweep(store, job):
    """Complete the blocker with SQL, so that only the sweeper can free the waiting job."""
    alter([job], status="completed")
    store.blockers.sweep(100, None, Effects())


ENDS = {
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


def waiting_with_status(store, status, policy):
    """Return a job that could be freed if its status allowed it, and the running job that it waits for."""
    dependent = job_with_status(store, status)
    alter([dependent], leased_until=database_now() + timedelta(days=1), on_blocker_failure=policy)
    create(store, 1, MAIL)
    [blocker] = claim(store, 1, types=[MAIL])
    link(dependent, blocker.id)
    return dependent, blocker
