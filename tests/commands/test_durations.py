"""``show``: how long attempts took, as far as that is known."""

from collections.abc import Callable

import pytest

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import Backoff
from django_jobchains.store import Store
from django_jobchains.store.rows import ClaimedJob
from tests.support.chains import attempt, ship
from tests.support.jobs import expire, failed_try, finished, is_a_minute, start_a_minute_earlier

pytestmark = pytest.mark.django_db


def completes(store: Store, chain: chains.Chain, job: ClaimedJob) -> None:
    store.attempts.finish([finished(job)])


def is_retried(store: Store, chain: chains.Chain, job: ClaimedJob) -> None:
    store.attempts.reschedule([failed_try(job)])


def fails(store: Store, chain: chains.Chain, job: ClaimedJob) -> None:
    store.attempts.fail([failed_try(job)])


def crashes(store: Store, chain: chains.Chain, job: ClaimedJob) -> None:
    store.attempts.reschedule([failed_try(job, kind="crash", error="ChildCrashed: killed")])


def stops_when_cancelled(store: Store, chain: chains.Chain, job: ClaimedJob) -> None:
    chains.cancel(chain)
    Job.objects.filter(pk=job.id).update(cancel_requested_at=chain.created_at)
    store.attempts.hand_back([job.key])


def is_lost(store: Store, chain: chains.Chain, job: ClaimedJob) -> None:
    expire(job)
    assert store.leases.reap(10, Backoff(), 10)


def completes_without_a_worker(store: Store, chain: chains.Chain, job: ClaimedJob) -> None:
    chains.complete(chain)


def is_completed_after_a_failure(store: Store, chain: chains.Chain, job: ClaimedJob) -> None:
    store.attempts.reschedule([failed_try(job)])
    chains.complete(chain)


def is_cancelled_after_a_reschedule(store: Store, chain: chains.Chain, job: ClaimedJob) -> None:
    store.attempts.hand_back([job.key])
    chains.cancel(chain)


End = Callable[[Store, chains.Chain, ClaimedJob], None]
KNOWN: list[End] = [completes, is_retried, fails, crashes, stops_when_cancelled]
UNKNOWN: list[End] = [
    is_lost,
    completes_without_a_worker,
    is_completed_after_a_failure,
    is_cancelled_after_a_reschedule,
]


@pytest.mark.parametrize("end", [*KNOWN, *UNKNOWN])
def test_the_duration_of_the_last_attempt_is_shown_if_it_is_known(run, store, end):
    chain = ship.enqueue()
    job = attempt(store, chain)
    start_a_minute_earlier(job.id)
    end(store, chain, job)
    shown, lines = run("show", chain.id, "--format", "json").json["steps"][0], run("show", chain.id).lines
    first = next(line for line in lines if line.startswith("1 shop.ship"))
    is_final = shown["status"] in ("completed", "failed", "cancelled")
    if end in KNOWN:
        assert is_a_minute(shown["duration_seconds"])
        assert ("· ran 1 min" in first) == is_final
    else:
        assert shown["duration_seconds"] is None
        assert "ran" not in first.split(" · ")[-1]
    for failed in shown["failed_attempts"]:
        [line] = [line for line in lines if "✗ 1" in line]
        assert is_a_minute(failed["duration_seconds"]) == (end is not is_lost) == ("· 1 min" in line)


def test_a_lost_attempt_keeps_its_times(run, store):
    chain = ship.enqueue()
    job = attempt(store, chain)
    start_a_minute_earlier(job.id)
    is_lost(store, chain, job)
    [failed] = run("show", chain.id, "--format", "json").json["steps"][0]["failed_attempts"]
    assert failed["kind"] == "crash"
    assert failed["started_at"] < failed["finished_at"]


def test_a_running_attempt_has_no_duration_yet(run, store):
    chain = ship.enqueue()
    start_a_minute_earlier(attempt(store, chain).id)
    assert run("show", chain.id, "--format", "json").json["steps"][0]["duration_seconds"] is None
    assert "running · for 1 min" in run("show", chain.id).out
