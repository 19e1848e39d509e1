"""A blocker that fails or is cancelled: the job goes on waiting, fails too, or runs anyway, as its type says."""

from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.models import Chain
from django_jobchains.processors import JobType
from django_jobchains.store import Effects, Store
from django_jobchains.store.blocking import BLOCKER_FAILED
from tests.blockers.kinds import (
    FAILS,
    FAILURES,
    RUNS,
    STEP,
    WAITS,
    End,
    by_hand,
    cancel,
    current,
    fail,
    goes_on,
    links,
    started,
    statuses,
)
from tests.blockers.oracle import assert_sound
from tests.store.jobs import failed_try

pytestmark = pytest.mark.django_db

failures = pytest.mark.parametrize("end", FAILURES.values(), ids=FAILURES)


@failures
def test_a_job_that_waits_stays_blocked(store: Store, end: End) -> None:
    blocker = STEP.enqueue()
    dependent = WAITS.enqueue(blockers=[blocker])
    end(store, blocker, effects := Effects())
    assert (statuses(dependent), links(dependent)) == (["blocked"], [(blocker.id, True)])
    assert (effects.due_types, effects.finished_chains) == (set(), {blocker.id})
    assert_sound(store)


@failures
def test_a_job_that_fails_with_its_blocker_fails_at_once(store: Store, end: End) -> None:
    blocker = STEP.enqueue()
    dependent = FAILS.enqueue(blockers=[STEP.enqueue(delay=60), blocker])
    end(store, blocker, effects := Effects())
    job = current(dependent)
    assert (job.status, job.last_error, job.attempt) == ("failed", BLOCKER_FAILED, 0)
    assert job.finished_at is not None
    assert (effects.due_types, effects.finished_chains) == (set(), {blocker.id, dependent.id})
    assert_sound(store)


@failures
def test_a_job_that_runs_anyway_waits_for_the_end_only(store: Store, end: End) -> None:
    other, blocker = STEP.enqueue(), STEP.enqueue()
    by_hand(other)
    dependent = RUNS.enqueue(blockers=[other, blocker])
    end(store, blocker, effects := Effects())
    assert (statuses(dependent), links(dependent)) == (["pending"], [(other.id, False), (blocker.id, False)])
    assert (effects.due_types, effects.finished_chains) == ({RUNS.name}, {blocker.id})
    assert_sound(store)


@failures
def test_a_job_that_runs_anyway_waits_for_its_other_blockers(store: Store, end: End) -> None:
    blocker, other = STEP.enqueue(), STEP.enqueue(delay=60)
    dependent = RUNS.enqueue(blockers=[blocker, other])
    end(store, blocker, Effects())
    assert (statuses(dependent), links(dependent)) == (["blocked"], [(blocker.id, False), (other.id, True)])
    by_hand(other)
    assert statuses(dependent) == ["pending"]
    assert_sound(store)


@failures
@pytest.mark.parametrize(("kind", "status"), [(WAITS, "blocked"), (FAILS, "failed"), (RUNS, "pending")], ids=str)
def test_a_blocker_that_had_ended_before_counts_the_same(
    store: Store, end: End, kind: JobType[Any, Any], status: str
) -> None:
    blocker = STEP.enqueue()
    end(store, blocker, Effects())
    dependent = kind.enqueue(blockers=[blocker])
    assert (statuses(dependent), links(dependent)) == ([status], [(blocker.id, kind is not RUNS)])
    assert (current(dependent).last_error, current(dependent).finished_at is None) == (
        (BLOCKER_FAILED, False) if kind is FAILS else (None, True)
    )
    assert_sound(store)


@pytest.mark.parametrize(("kind", "status"), [(WAITS, "blocked"), (FAILS, "failed"), (RUNS, "pending")], ids=str)
def test_a_continuation_counts_the_same(store: Store, kind: JobType[Any, Any], status: str) -> None:
    blocker, chain = STEP.enqueue(), STEP.enqueue(delay=60)
    fail(store, blocker, Effects())
    behind = FAILS.enqueue(blockers=[chain])
    with chains.complete(chain.id) as job:
        job.continue_with(kind, blockers=[blocker])
    assert statuses(chain, behind) == [status, "failed" if kind is FAILS else "blocked"]
    assert_sound(store)


def test_a_chain_that_fails_as_it_is_enqueued_has_ended(store: Store) -> None:
    blocker = STEP.enqueue()
    cancel(store, blocker, Effects())
    effects = Effects()
    item = FAILS.item(blockers=[blocker])
    store.create([item.job], effects)
    assert (effects.due_types, effects.finished_chains) == (set(), {item.job.id})


@failures
def test_failing_goes_on_over_every_level(store: Store, end: End) -> None:
    blocker = STEP.enqueue()
    levels = [[FAILS.enqueue(blockers=[blocker]) for _ in range(2)]]
    for _ in range(4):
        levels.append([FAILS.enqueue(blockers=levels[-1]) for _ in range(2)])
    waiting, anyway = WAITS.enqueue(blockers=levels[2][:1]), RUNS.enqueue(blockers=levels[2])
    behind = FAILS.enqueue(blockers=[waiting])
    end(store, blocker, effects := Effects())
    failed = [chain for level in levels for chain in level]
    assert set(statuses(*failed)) == {"failed"}
    assert statuses(waiting, anyway, behind) == ["blocked", "pending", "blocked"]
    assert effects.finished_chains == {blocker.id, *(chain.id for chain in failed)}
    assert effects.due_types == {RUNS.name}
    assert_sound(store)


def test_failing_goes_on_from_the_last_jobs_of_chains(store: Store) -> None:
    blocker, chain = STEP.enqueue(), STEP.enqueue()
    last = FAILS.enqueue(blockers=[chain])
    with chains.complete(chain.id) as job:
        job.continue_with(FAILS, blockers=[blocker])
    fail(store, blocker, Effects())
    assert statuses(chain, last) == ["failed", "failed"]
    assert [job.status for job in chain.jobs] == ["completed", "failed"]
    assert_sound(store)


def test_a_hundred_levels_fail_in_one_call(store: Store) -> None:
    line = [STEP.enqueue()]
    for _ in range(100):
        line.append(FAILS.enqueue(blockers=[line[-1]]))
    cancel(store, line[0], effects := Effects())
    assert effects.finished_chains == {chain.id for chain in line}
    assert set(statuses(*line[1:])) == {"failed"}
    assert_sound(store)


def test_a_job_that_was_asked_to_stop_and_goes_on_is_a_chain_that_was_cancelled(store: Store) -> None:
    """What it completed stays, its continuation is cancelled: whoever waits for the chain hears of it."""
    blocker = STEP.enqueue()
    dependents = [kind.enqueue(blockers=[blocker]) for kind in (WAITS, FAILS, RUNS)]
    [job] = started(store, blocker)
    store.cancel([blocker.id], Effects())
    store.finish([goes_on(job)], effects := Effects())
    assert [job.status for job in blocker.jobs] == ["completed", "cancelled"]
    assert statuses(*dependents) == ["blocked", "failed", "pending"]
    assert effects.finished_chains == {blocker.id, dependents[1].id}
    assert_sound(store)


def test_a_job_that_ended_by_itself_does_not_fail_with_its_blocker(store: Store) -> None:
    blocker = STEP.enqueue()
    done, stopped = FAILS.enqueue(blockers=[blocker]), FAILS.enqueue(blockers=[blocker])
    by_hand(done, "by hand")
    chains.cancel(stopped)
    fail(store, blocker, effects := Effects())
    assert statuses(done, stopped) == ["completed", "cancelled"]
    assert effects.finished_chains == {blocker.id}
    assert_sound(store)


def test_an_attempt_that_comes_again_is_no_failure(store: Store) -> None:
    blocker = STEP.enqueue()
    dependents: list[Chain] = [kind.enqueue(blockers=[blocker]) for kind in (WAITS, FAILS, RUNS)]
    [job] = started(store, blocker)
    store.reschedule([failed_try(job, delay_seconds=60)], effects := Effects())
    assert statuses(*dependents) == ["blocked"] * 3
    assert effects.finished_chains == set()
    assert_sound(store)
