"""The sweeper finds blocked jobs that wait for nothing. There must not be any; these were made by hand."""

from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.models import Chain, Job, JobBlocker
from django_jobchains.processors import JobType, Processors
from django_jobchains.store import Effects, Store
from django_jobchains.telemetry.events import BlockedJobsSwept
from tests.attempts.work import WITHOUT_WAKE_UPS
from tests.blockers.kinds import FAILS, RUNS, STEP, WAITS, by_hand, fail, links, statuses
from tests.blockers.oracle import assert_sound, problems, swept
from tests.store.connections import committing
from tests.worker.fixtures import Events, StartWorker, events, make_worker, registry, start_worker
from tests.worker.waiting import until, until_completed

__all__ = ("events", "make_worker", "registry", "start_worker")

pytestmark = committing

Breakage = Any


def forgotten_link(kind: JobType[Any, Any] = WAITS) -> Chain:
    """Blocked, with an open link to a chain that is completed."""
    chain = kind.enqueue(blockers=[blocker := STEP.enqueue()])
    by_hand(blocker)
    JobBlocker.objects.filter(job_id=chain.id).update(is_open=True)
    Job.objects.filter(pk=chain.id).update(status="blocked")
    return chain


def forgotten_job(kind: JobType[Any, Any] = WAITS) -> Chain:
    """Blocked, with all its links closed."""
    chain = kind.enqueue(blockers=[blocker := STEP.enqueue()])
    by_hand(blocker)
    Job.objects.filter(pk=chain.id).update(status="blocked")
    return chain


def lost_links() -> Chain:
    """Blocked, by nothing."""
    chain = WAITS.enqueue()
    Job.objects.filter(pk=chain.id).update(status="blocked")
    return chain


def forgotten_end() -> Chain:
    """Blocked by a chain that failed, with which it should have failed."""
    chain = FAILS.enqueue(blockers=[blocker := STEP.enqueue()])
    Job.objects.filter(pk=blocker.id).update(status="failed")
    return chain


def forgotten_failure() -> Chain:
    """Blocked by a chain that failed, which it does not mind."""
    chain = RUNS.enqueue(blockers=[blocker := STEP.enqueue()])
    Job.objects.filter(pk=blocker.id).update(status="failed")
    return chain


broken = pytest.mark.parametrize("broken", [forgotten_link, forgotten_job, lost_links, forgotten_failure])


@broken
def test_a_stuck_job_is_freed_and_named(store: Store, broken: Breakage) -> None:
    healthy = WAITS.enqueue(blockers=[STEP.enqueue()])
    chain = broken()
    effects = Effects()
    assert store.sweep(100, None, effects) == ([chain.id], None)
    assert (statuses(chain, healthy), effects.due_types) == (["pending", "blocked"], {chain.type_name})
    assert swept(store) == []


def test_a_job_that_should_have_failed_with_its_blocker_fails_and_is_named(store: Store) -> None:
    chain = forgotten_end()
    last = FAILS.enqueue(blockers=[chain])
    effects = Effects()
    assert store.sweep(100, None, effects) == ([chain.id], None)
    assert (statuses(chain, last), effects.finished_chains) == (["failed", "failed"], {chain.id, last.id})
    assert swept(store) == []


def test_a_job_with_one_forgotten_link_and_one_open_blocker_is_not_stuck(store: Store) -> None:
    done, open_ = STEP.enqueue(), STEP.enqueue()
    chain = WAITS.enqueue(blockers=[done, open_])
    by_hand(done)
    JobBlocker.objects.filter(job_id=chain.id).update(is_open=True)
    assert swept(store) == []
    assert statuses(chain) == ["blocked"]
    by_hand(open_)
    assert swept(store) == [chain.id]
    assert (statuses(chain), links(chain)) == (["pending"], [(done.id, False), (open_.id, False)])


def test_it_looks_at_a_part_of_the_blocked_jobs_at_a_time_and_goes_on(store: Store) -> None:
    blocked = [forgotten_job() if number % 3 == 0 else waiting_job() for number in range(20)]
    stuck = [chain.id for chain in blocked[::3]]
    pages, after = [], None
    while True:
        page, after = store.sweep(6, after, Effects())
        pages.append(page)
        if after is None:
            break
    assert [id_ for page in pages for id_ in page] == stuck
    assert [len(page) for page in pages] == [2, 2, 2, 1]
    assert problems() == []


def test_a_page_that_ends_with_the_last_job_is_followed_by_an_empty_one(store: Store) -> None:
    blocked = [forgotten_job() for _ in range(3)]
    found, after = store.sweep(3, None, Effects())
    assert (found, after) == ([chain.id for chain in blocked], blocked[-1].id)
    assert store.sweep(3, after, Effects()) == ([], None)


def test_it_finds_nothing_in_healthy_tables(store: Store) -> None:
    """Jobs that wait for open chains, for chains that go on, and for chains that failed and may be retried."""
    blocker, failed = STEP.enqueue(), STEP.enqueue(priority=9)
    with chains.complete(blocker.id) as job:
        job.continue_with(STEP, delay=60)
    fail(store, failed, Effects())
    waiting = [kind.enqueue(blockers=[blocker]) for kind in (WAITS, FAILS, RUNS)]
    waiting += [WAITS.enqueue(blockers=[failed]), WAITS.enqueue(blockers=[waiting[0]])]
    assert set(statuses(*waiting)) == {"blocked"}
    assert_sound(store)


def test_a_worker_frees_and_reports_stuck_jobs(
    store: Store, processors: Processors, registry: Any, start_worker: StartWorker, events: Events, settings: Any
) -> None:
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "SWEEP_SECONDS": 0.05}
    kind = processors.register("stuck")(lambda job: "freed")
    registry.add(processors)
    chain = forgotten_link(kind)
    waiting = waiting_job()
    start_worker(poll_seconds=0.1)
    until_completed(chain)
    until(lambda: any(not event.found for event in events.of(BlockedJobsSwept)))
    assert [event.job_ids for event in events.of(BlockedJobsSwept) if event.found] == [(chain.id,)]
    assert {event.found for event in events.of(BlockedJobsSwept)} == {0, 1}
    assert statuses(waiting) == ["blocked"]


def test_a_worker_reports_that_it_found_nothing(
    processors: Processors, registry: Any, start_worker: StartWorker, events: Events, settings: Any
) -> None:
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "SWEEP_SECONDS": 0.05}
    processors.register("anything")(lambda job: None)
    registry.add(processors)
    waiting = waiting_job()
    start_worker()
    reports = until(lambda: len(events.of(BlockedJobsSwept)) > 2 and events.of(BlockedJobsSwept))
    assert {(event.found, event.job_ids) for event in reports} == {(0, ())}
    assert statuses(waiting) == ["blocked"]


def test_one_of_several_workers_looks_for_all(
    processors: Processors, registry: Any, start_worker: StartWorker, events: Events, settings: Any
) -> None:
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "SWEEP_SECONDS": 0.05, "HEARTBEAT_SECONDS": 0.05}
    processors.register("anything")(lambda job: None)
    registry.add(processors)

    def sweeps_of(worker: Any) -> int:
        return sum(event.worker == worker.id for event in events.of(BlockedJobsSwept))

    first = start_worker()
    until(lambda: sweeps_of(first))
    second = start_worker()
    until(lambda: second.parts.heartbeat.last_success_at)
    before = sweeps_of(first)
    until(lambda: sweeps_of(first) > before + 3)
    assert not sweeps_of(second)
    first.stop()
    until(lambda: sweeps_of(second))


def waiting_job() -> Chain:
    return WAITS.enqueue(blockers=[STEP.enqueue()])
