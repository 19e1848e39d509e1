"""Chains that ``on_failure`` enqueues in the transaction that marks a job as failed."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from django.apps import apps
from django.db import DatabaseError
from django.test.utils import CaptureQueriesContext

from django_jobchains.models import Job
from django_jobchains.store import Store
from django_jobchains.store.on_failure import FailureType
from django_jobchains.store.rows import ClaimedJob, Effects
from tests.support.jobs import (
    AT_ONCE,
    MAIL,
    SHIP,
    create,
    failed_try,
    finished,
    let_leases_end,
    running,
    running_job,
    statuses,
    stored,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("registry")]

ALERT = "contract.alert"

Fail = Callable[[Store, Sequence[ClaimedJob], Effects], object]


def reap(store, jobs, effects):
    let_leases_end(store)
    store.leases.reap(len(jobs), AT_ONCE, 1, (), effects)


#: The methods that mark running jobs as failed.
FAILS = {
    "fail": lambda store, jobs, effects: store.attempts.fail([failed_try(job) for job in jobs], effects),
    "reap": reap,
}


class _Registry:
    """Declares an ``on_failure`` for one type."""

    keys = None

    def failure_type(self, type_name):
        return FailureType(ALERT, "alerts", 7, self.keys) if type_name == SHIP else None


@pytest.fixture
def registry(monkeypatch):
    registry = _Registry()
    monkeypatch.setattr(apps.get_app_config("django_jobchains"), "registry", registry)
    return registry


def followed():
    """Return the ids of the failed jobs in the inputs of the chains that were enqueued for them."""
    alerts = Job.objects.of_type(ALERT).order_by("id")
    return sorted(job.input["job_id"] for job in alerts if job.input)


@pytest.mark.parametrize("name", FAILS)
def test_a_failed_job_is_followed_by_a_chain(store, name):
    job, effects = running_job(store, input='{"order": 7}', context='{"tenant": 3}'), Effects()
    FAILS[name](store, [job], effects)
    alert, failed = Job.objects.of_type(ALERT).get(), stored(job)
    assert alert.input == {
        "chain_id": str(job.chain_id),
        "job_id": str(job.id),
        "type_name": SHIP,
        "attempt": 1,
        "error": failed.last_error,
        "input": {"order": 7},
        "input_problem": "",
    }
    assert (alert.status, alert.queue, alert.priority, alert.context) == ("pending", "alerts", 7, {"tenant": 3})
    assert (alert.chain_id, alert.chain_index, alert.chain_type_name) == (alert.id, 0, ALERT)
    assert ALERT in effects.due_types


def test_jobs_that_fail_with_a_blocker_are_followed(store):
    blocker = running_job(store)
    (first,) = create(store, blockers=(blocker.chain_id,), on_blocker_failure="fail")
    (second,) = create(store, blockers=(first,), on_blocker_failure="fail")
    store.chains.cancel([blocker.chain_id], Effects())
    store.attempts.fail([failed_try(blocker)])
    assert followed() == sorted(map(str, (first, second)))
    store.chains.retry([first], Effects())
    (late,) = create(store, blockers=(blocker.chain_id,), on_blocker_failure="fail")
    assert followed() == sorted(map(str, (first, first, second, late)))


def test_other_ends_are_not_followed(store):
    completed, again, handed_back, stale, cancelled = running(store, 5)
    store.attempts.finish([finished(completed)])
    store.attempts.reschedule([failed_try(again, delay_seconds=600)])
    store.attempts.hand_back([handed_back.key])
    store.attempts.fail([failed_try(stale._replace(lease_number=stale.lease_number + 1))])
    store.chains.cancel([cancelled.chain_id], Effects())
    store.attempts.fail([failed_try(cancelled)])
    store.attempts.fail([failed_try(running_job(store, type_name=MAIL))])
    assert followed() == []


@pytest.mark.parametrize("is_swallowed", [False, True])
@pytest.mark.parametrize("name", FAILS)
def test_an_error_of_the_database_in_the_keys_of_a_limit_affects_only_their_chain(
    store, registry, name, is_swallowed, caplog
):
    jobs = running(store, 4)

    def keys(stored):
        with store.connection.cursor() as cursor, suppress(DatabaseError if is_swallowed else ()):
            cursor.execute("SELECT tenant FROM no_such_table" if str(jobs[1].id) in stored else "SELECT 1")
        return 5, "key", None

    registry.keys = keys
    FAILS[name](store, jobs, Effects())
    assert statuses(*jobs) == ["failed"] * 4
    found = {alert.input["job_id"]: alert.limit_key for alert in Job.objects.of_type(ALERT)}
    assert found == {str(job.id): 5 if job != jobs[1] or is_swallowed else None for job in jobs}
    assert (f"The keys of the limits of {ALERT} for job {jobs[1].id} failed" in caplog.text) is not is_swallowed


@pytest.mark.parametrize("keys", [None, lambda stored: (5, "key", None)])
@pytest.mark.parametrize("name", FAILS)
def test_many_failures_take_as_many_statements_as_one(store, registry, name, keys):
    registry.keys = keys
    counts = []
    for number in (1, 20):
        jobs = running(store, number)
        with CaptureQueriesContext(store.connection) as captured:
            FAILS[name](store, jobs, Effects())
        counts.append(len(captured))
    assert counts[0] == counts[1]
    assert len(followed()) == 21
