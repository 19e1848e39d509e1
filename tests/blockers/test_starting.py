"""When a job with blockers starts: as soon as every chain it waits for is completed, and not before."""

from datetime import timedelta
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.models import Chain, Job
from django_jobchains.store import Effects, Store
from tests.blockers.kinds import (
    COMPLETIONS,
    STEP,
    WAITS,
    End,
    by_hand,
    current,
    goes_on,
    links,
    started,
    statuses,
)
from tests.blockers.oracle import assert_sound
from tests.store.jobs import MAIL, database_now, finished, next_job, running, stored

pytestmark = pytest.mark.django_db

completions = pytest.mark.parametrize("complete", COMPLETIONS.values(), ids=COMPLETIONS)


@completions
def test_a_job_is_blocked_until_its_blocker_is_completed(store: Store, complete: End) -> None:
    blocker = STEP.enqueue()
    dependent = WAITS.enqueue(blockers=[blocker])
    assert (statuses(dependent), links(dependent)) == (["blocked"], [(blocker.id, True)])
    complete(store, blocker, effects := Effects())
    assert (statuses(blocker, dependent), links(dependent)) == (["completed", "pending"], [(blocker.id, False)])
    assert effects.due_types == {WAITS.name}
    assert effects.finished_chains == {blocker.id}
    assert_sound(store)


@completions
def test_it_waits_for_the_last_of_its_blockers(store: Store, complete: End) -> None:
    blockers = [STEP.enqueue(run_at=database_now() + timedelta(hours=1)) for _ in range(3)]
    dependent = WAITS.enqueue(blockers=blockers)
    for number, blocker in enumerate(blockers):
        assert statuses(dependent) == ["blocked"]
        assert [is_open for _, is_open in links(dependent)] == [False] * number + [True] * (3 - number)
        chains.run_now(blocker.id)
        complete(store, blocker, Effects())
    assert statuses(dependent) == ["pending"]
    assert_sound(store)


def test_it_waits_for_the_chain_and_not_for_its_first_job(store: Store) -> None:
    blocker = STEP.enqueue()
    dependent = WAITS.enqueue(blockers=[blocker])
    for _ in range(3):
        [job] = started(store, blocker)
        store.finish([goes_on(job)], effects := Effects())
        assert statuses(dependent) == ["blocked"]
        assert effects == Effects(due_types={MAIL})
    [job] = started(store, blocker)
    store.finish([finished(job)])
    assert statuses(blocker, dependent) == ["completed", "pending"]


def test_it_waits_for_a_chain_that_has_gone_on_already(store: Store) -> None:
    blocker = STEP.enqueue()
    with chains.complete(blocker.id) as job:
        job.continue_with(STEP)
    dependent = WAITS.enqueue(blockers=[blocker])
    assert statuses(dependent) == ["blocked"]
    by_hand(blocker)
    assert statuses(dependent) == ["pending"]


def test_a_job_whose_blockers_are_all_completed_starts_pending(store: Store) -> None:
    blockers = [STEP.enqueue(), STEP.enqueue()]
    for blocker in blockers:
        by_hand(blocker)
    dependent = WAITS.enqueue(blockers=blockers)
    assert (statuses(dependent), links(dependent)) == (["pending"], [(blocker.id, False) for blocker in blockers])
    [job] = started(store, dependent)
    store.finish([finished(job)])
    assert_sound(store)


def test_blockers_that_are_completed_already_are_not_waited_for() -> None:
    done, open_ = STEP.enqueue(), STEP.enqueue()
    by_hand(done)
    dependent = WAITS.enqueue(blockers=[done, open_])
    assert (statuses(dependent), links(dependent)) == (["blocked"], [(done.id, False), (open_.id, True)])
    by_hand(open_)
    assert statuses(dependent) == ["pending"]


@completions
def test_a_future_date_survives(store: Store, complete: End) -> None:
    run_at = database_now() + timedelta(days=1)
    blocker = STEP.enqueue()
    dependent = WAITS.enqueue(blockers=[blocker], run_at=run_at)
    complete(store, blocker, Effects())
    job = current(dependent)
    assert job.status == "pending"
    assert abs(job.run_at - run_at) < timedelta(milliseconds=1)
    started(store)  # nothing is due


@completions
def test_a_date_that_has_passed_meanwhile_becomes_the_time_it_was_freed(store: Store, complete: End) -> None:
    blocker = STEP.enqueue()
    dependent = WAITS.enqueue(blockers=[blocker])
    before = database_now()
    complete(store, blocker, Effects())
    assert before - timedelta(milliseconds=1) <= current(dependent).run_at <= database_now()


def test_one_completion_frees_every_job_that_waits(store: Store) -> None:
    blocker, other = STEP.enqueue(), STEP.enqueue(delay=60)
    free = chains.enqueue_many([kind.item(blockers=[blocker]) for kind in (WAITS, STEP, WAITS)])
    held = WAITS.enqueue(blockers=[blocker, other])
    [job] = started(store, blocker)
    store.finish([finished(job)], effects := Effects())
    assert statuses(*free, held) == ["pending", "pending", "pending", "blocked"]
    assert effects.due_types == {WAITS.name, STEP.name}
    assert_sound(store)


def test_a_continuation_waits_for_its_blockers(store: Store) -> None:
    blockers = [STEP.enqueue(delay=60), STEP.enqueue(delay=60)]
    chain = WAITS.enqueue()
    with chains.complete(chain.id) as job:
        job.continue_with(WAITS, "next", blockers=blockers)
    assert (statuses(chain), links(chain)) == (["blocked"], [(blocker.id, True) for blocker in blockers])
    for blocker in blockers:
        by_hand(blocker)
    assert statuses(chain) == ["pending"]
    assert current(chain).chain_index == 1
    assert_sound(store)


def test_a_chain_of_waiting_chains_runs_one_after_the_other(store: Store) -> None:
    line: list[Chain] = [STEP.enqueue()]
    for _ in range(4):
        line.append(WAITS.enqueue(blockers=[line[-1]]))
    for chain in line:
        [job] = started(store, chain)
        store.finish([finished(job)])
    assert set(statuses(*line)) == {"completed"}


def test_a_blocked_job_may_be_completed_by_hand_and_its_own_dependents_go_on(store: Store) -> None:
    blocker = STEP.enqueue()
    middle = WAITS.enqueue(blockers=[blocker])
    last = WAITS.enqueue(blockers=[middle])
    by_hand(middle, "by hand")
    assert statuses(blocker, middle, last) == ["pending", "completed", "pending"]
    by_hand(blocker)
    assert statuses(blocker, middle, last) == ["completed", "completed", "pending"]
    assert_sound(store)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_continuation_waits_for_a_chain_that_goes_on_in_one_batch_with_it(store: Store, is_first: bool) -> None:
    """Two slots of one worker: their outcomes are written together."""
    one, blocker = running(store, 2)
    batch = [
        finished(one, None, waiting := next_job(one, blockers=(blocker.chain_id,))),
        finished(blocker, None, next_job(blocker)),
    ]
    store.finish(batch if is_first else batch[::-1])
    assert stored(waiting.id).status == "blocked"
    assert_sound(store)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_continuation_does_not_wait_for_a_chain_that_ends_in_one_batch_with_it(store: Store, is_first: bool) -> None:
    one, blocker = running(store, 2)
    batch = [finished(one, None, waiting := next_job(one, blockers=(blocker.chain_id,))), finished(blocker)]
    store.finish(batch if is_first else batch[::-1])
    assert stored(waiting.id).status == "pending"
    assert_sound(store)


def test_blockers_that_end_in_one_batch_free_their_job_together(store: Store) -> None:
    blockers = chains.enqueue_many([STEP.item() for _ in range(20)])
    dependent = WAITS.enqueue(blockers=blockers)
    jobs = started(store, *blockers)
    store.finish([finished(job) for job in jobs[:-1]])
    assert statuses(dependent) == ["blocked"]
    store.finish([finished(jobs[-1])])
    assert statuses(dependent) == ["pending"]


def test_a_chain_knows_its_blockers_and_a_blocker_its_dependents() -> None:
    blocker, other = STEP.enqueue(), STEP.enqueue()
    dependent = WAITS.enqueue(blockers=[blocker])
    WAITS.enqueue(blockers=[other])
    assert list(Chain.objects.blocked_by(blocker)) == [dependent]
    assert [job.chain_id for job in Job.objects.blocked_by(blocker.id)] == [dependent.id]
    by_hand(blocker)
    assert list(Chain.objects.blocked_by(blocker)) == [dependent]


def test_deduplication_returns_a_chain_with_the_blockers_it_has(store: Store) -> None:
    one, two = STEP.enqueue(), STEP.enqueue()
    options: dict[str, Any] = {"deduplicate": chains.Deduplicate("key")}
    first = WAITS.enqueue(blockers=[one], **options)
    again = WAITS.enqueue(blockers=[two], **options)
    assert (again.id, again.deduplicated, links(again)) == (first.id, True, [(one.id, True)])
    assert_sound(store)
