"""The sweeper finds blocked jobs that wait for nothing. They should not exist, so the tests create them by hand."""

import pytest

from django_jobchains import chains
from django_jobchains.models import Job, JobBlocker
from django_jobchains.store.rows import Effects
from django_jobchains.telemetry.events import BlockedJobsSwept
from tests.blockers.chains import FAILS, RUNS, STEP, WAITS, complete_by_hand, fail, links, statuses
from tests.blockers.consistency import assert_consistent, problems, swept
from tests.support.attempts import WITHOUT_WAKE_UPS
from tests.support.connections import committing
from tests.support.waiting import until, until_completed

pytestmark = committing


def stale_link(kind=WAITS):
    """Create a blocked job with an open link to a completed chain."""
    chain = kind.enqueue(blockers=[blocker := STEP.enqueue()])
    complete_by_hand(blocker)
    JobBlocker.objects.filter(job_id=chain.id).update(is_open=True)
    Job.objects.filter(pk=chain.id).update(status="blocked")
    return chain


def job_with_closed_links(kind=WAITS):
    """Create a blocked job whose links are all closed."""
    chain = kind.enqueue(blockers=[blocker := STEP.enqueue()])
    complete_by_hand(blocker)
    Job.objects.filter(pk=chain.id).update(status="blocked")
    return chain


def job_without_links():
    """Create a blocked job without links."""
    chain = WAITS.enqueue()
    Job.objects.filter(pk=chain.id).update(status="blocked")
    return chain


def missed_failure():
    """Create a blocked job that should have failed with its blocker."""
    chain = FAILS.enqueue(blockers=[blocker := STEP.enqueue()])
    Job.objects.filter(pk=blocker.id).update(status="failed")
    return chain


def missed_end():
    """Create a blocked job that should run after its blocker failed."""
    chain = RUNS.enqueue(blockers=[blocker := STEP.enqueue()])
    Job.objects.filter(pk=blocker.id).update(status="failed")
    return chain


broken = pytest.mark.parametrize("broken", [stale_link, job_with_closed_links, job_without_links, missed_end])


@broken
def test_stuck_job_is_freed_and_returned(store, broken):
    healthy = WAITS.enqueue(blockers=[STEP.enqueue()])
    chain = broken()
    effects = Effects()
    assert store.blockers.sweep(100, None, effects) == ([chain.id], None)
    assert (statuses(chain, healthy), effects.due_types) == (["pending", "blocked"], {chain.type_name})
    assert swept(store) == []


def test_job_that_should_have_failed_with_its_blocker_fails_and_is_returned(store):
    chain = missed_failure()
    last = FAILS.enqueue(blockers=[chain])
    effects = Effects()
    assert store.blockers.sweep(100, None, effects) == ([chain.id], None)
    assert (statuses(chain, last), effects.finished_chains) == (["failed", "failed"], {chain.id, last.id})
    assert swept(store) == []


def test_job_with_one_stale_link_and_one_open_blocker_is_not_stuck(store):
    done, open_ = STEP.enqueue(), STEP.enqueue()
    chain = WAITS.enqueue(blockers=[done, open_])
    complete_by_hand(done)
    JobBlocker.objects.filter(job_id=chain.id).update(is_open=True)
    assert swept(store) == []
    assert statuses(chain) == ["blocked"]
    complete_by_hand(open_)
    assert swept(store) == [chain.id]
    assert (statuses(chain), links(chain)) == (["pending"], [(done.id, False), (open_.id, False)])


def test_sweeper_reads_blocked_jobs_page_by_page(store):
    blocked = [job_with_closed_links() if number % 3 == 0 else waiting_job() for number in range(20)]
    stuck = [chain.id for chain in blocked[::3]]
    pages, after = [], None
    while True:
        page, after = store.blockers.sweep(6, after, Effects())
        pages.append(page)
        if after is None:
            break
    assert [id_ for page in pages for id_ in sorted(page)] == stuck
    assert [len(page) for page in pages] == [2, 2, 2, 1]
    assert problems() == []


def test_page_that_ends_with_the_last_job_is_followed_by_an_empty_one(store):
    blocked = [job_with_closed_links() for _ in range(3)]
    found, after = store.blockers.sweep(3, None, Effects())
    assert (sorted(found), after) == ([chain.id for chain in blocked], blocked[-1].id)
    assert store.blockers.sweep(3, after, Effects()) == ([], None)


def test_sweeper_finds_nothing_in_healthy_tables(store):
    """It skips jobs that wait for open chains, for chains that continue, and for failed chains that may be retried."""
    blocker, failed = STEP.enqueue(), STEP.enqueue(priority=9)
    with chains.current_job(blocker.id) as job:
        job.continue_with(STEP, delay=60)
    fail(store, failed, Effects())
    waiting = [kind.enqueue(blockers=[blocker]) for kind in (WAITS, FAILS, RUNS)]
    waiting += [WAITS.enqueue(blockers=[failed]), WAITS.enqueue(blockers=[waiting[0]])]
    assert set(statuses(*waiting)) == {"blocked"}
    assert_consistent(store)


def test_worker_frees_and_reports_stuck_jobs(store, processors, registry, start_worker, events, settings):
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "SWEEP_SECONDS": 0.05}
    kind = processors.register("stuck")(lambda job: "freed")
    registry.add(processors)
    chain = stale_link(kind)
    waiting = waiting_job()
    start_worker(poll_seconds=0.1)
    until_completed(chain)
    until(lambda: any(not event.found for event in events.of(BlockedJobsSwept)))
    assert [event.job_ids for event in events.of(BlockedJobsSwept) if event.found] == [(chain.id,)]
    assert {event.found for event in events.of(BlockedJobsSwept)} == {0, 1}
    assert statuses(waiting) == ["blocked"]


def test_one_of_several_workers_runs_the_sweeper(processors, registry, start_worker, events, settings):
    settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, "SWEEP_SECONDS": 0.05, "HEARTBEAT_SECONDS": 3}
    processors.register("anything")(lambda job: None)
    registry.add(processors)

    def sweeps_of(worker):
        return sum(event.worker == worker.id for event in events.of(BlockedJobsSwept))

    first = start_worker()
    until(lambda: sweeps_of(first))
    second = start_worker()
    until(lambda: second.components.heartbeat.last_success_at)
    before = sweeps_of(first)
    until(lambda: sweeps_of(first) > before + 3)
    assert not sweeps_of(second)
    first.stop()
    until(lambda: sweeps_of(second))


def waiting_job():
    return WAITS.enqueue(blockers=[STEP.enqueue()])
