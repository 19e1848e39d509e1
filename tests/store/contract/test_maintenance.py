"""The states of queues, the rows of workers, counts, and the deletion of old chains."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from django_jobchains.models import Job
from django_jobchains.store.deduplication import Deduplicate
from django_jobchains.store.queues import QueueRule
from django_jobchains.store.retention import EndedChains, EndPosition
from django_jobchains.store.stats import HeldGroup, SpanCount, TypeRuns, TypeTally
from django_jobchains.store.workers import Beat
from tests.store.conftest import locks_rows
from tests.support.connections import committing, elsewhere, holding
from tests.support.jobs import (
    MAIL,
    SHIP,
    create,
    failed_try,
    finished,
    next_job,
    running,
    running_job,
)
from tests.support.worker_rows import state_of

pytestmark = pytest.mark.django_db

BEAT = Beat(
    id="host:1:a",
    host="host",
    pid=1,
    version="1.0",
    slots=10,
    busy=3,
    stuck=1,
    queues=("mail", 'it\'s "quoted"'),
    type_names=(MAIL, SHIP),
    is_stopping=False,
    up_seconds=0.0,
    heartbeat_seconds=10.0,
)
LAST_OF_ALL = UUID(int=2**128 - 1)
FAR = datetime(2051, 1, 1, tzinfo=UTC)


def completed(store, count=1, **changes):
    jobs = running(store, count, **changes)
    store.attempts.finish([finished(job) for job in jobs])
    return [job.id for job in jobs]


def prune(store, ended, limit=1_000):
    """Walk along the index, and delete the chains that were found."""
    deleted = set()
    place = EndPosition(UUID(int=0))
    while place is not None:
        found = store.retention.find_ended("status", ended.statuses[0], place, LAST_OF_ALL, limit, ended)
        deleted |= store.retention.prune(found.job_ids, ended).deleted
        place = found.next
    return deleted


def left():
    return set(Job.objects.values_list("chain_id", flat=True))


def test_old_chains_with_the_given_statuses_are_deleted(store):
    old = completed(store, 3)
    failed = running_job(store)
    store.attempts.fail([failed_try(failed)])
    store.db.ahead_seconds = 600
    young = completed(store)
    (open_,) = create(store, delay_seconds=600)
    assert prune(store, EndedChains(("completed",), store.stats.time_ago(300))) == set(old)
    assert left() == {failed.id, open_, *young}
    assert prune(store, EndedChains(("failed",), store.stats.time_ago(300))) == {failed.id}


def test_the_age_of_a_chain_is_that_of_its_last_job(store):
    job = running_job(store)
    store.attempts.finish([finished(job, None, next_job(job, delay_seconds=600))])
    assert prune(store, EndedChains(("completed",), FAR)) == set()
    assert left() == {job.chain_id}


def test_only_chains_of_the_given_types_and_keys_are_deleted(store):
    ship, mail = completed(store), completed(store, type_name=MAIL)
    keyed = completed(store, type_name=MAIL, deduplication_key="k")
    assert prune(store, EndedChains(("completed",), FAR, (MAIL,), keyed=False)) == set(mail)
    assert left() == {*ship, *keyed}


def test_a_chain_is_kept_while_its_key_can_match(store):
    hour = timedelta(hours=1)
    open_only, open_in_window = Deduplicate("a"), Deduplicate("b", window=hour)
    in_window, forever = Deduplicate("c", "any", hour), Deduplicate("d", "any")
    ids = {
        deduplicate: completed(store, deduplicate=deduplicate, deduplication_key=deduplicate.key)[0]
        for deduplicate in (open_only, open_in_window, in_window, forever)
    }
    for seconds, gone in ((60, {ids[open_only], ids[open_in_window]}), (3_661, {ids[in_window]}), (10**8, set())):
        store.db.ahead_seconds = seconds
        assert prune(store, EndedChains(("completed",), store.stats.time_ago(0), keyed=False)) == gone
    assert left() == {ids[forever]}


def test_a_walk_reads_each_chain_once(store):
    ids = completed(store, 7)
    ended, place, found = EndedChains(("completed",), FAR), EndPosition(UUID(int=0)), list[UUID]()
    for _ in ids:
        step = store.retention.find_ended("status", "completed", place, LAST_OF_ALL, 3, ended)
        found += step.job_ids
        if step.next is None:
            break
        place = step.next
    assert found == ids


def test_a_needed_chain_is_not_pruned(store):
    (blocker,) = completed(store)
    (needs,) = create(store, 1, MAIL, blockers=(blocker,), delay_seconds=600)
    ended = EndedChains(("completed",), FAR)
    assert store.retention.prune([blocker], ended) == (set(), {blocker})
    assert left() == {blocker, needs}


def test_a_dry_run_deletes_nothing(store):
    ids = completed(store, 2)
    assert store.retention.prune(ids, EndedChains(("completed",), FAR), is_dry_run=True).deleted == set(ids)
    assert left() == set(ids)


@committing
@locks_rows
def test_a_locked_chain_is_not_pruned(store):
    locked, free = completed(store, 2)
    holding(lambda store: store.attempts.lock(locked))
    assert elsewhere(lambda store: prune(store, EndedChains(("completed",), FAR))) == {free}


def test_queues_are_paused_limited_and_resumed(store):
    store.queues.pause(["mail", "a b"])
    store.queues.pause(["mail"])
    store.queues.limit("mail", 2)
    store.queues.limit("bulk", 5)
    assert store.queues.rules() == [
        QueueRule("a b", True, None),
        QueueRule("bulk", False, 5),
        QueueRule("mail", True, 2),
    ]
    store.queues.resume(["mail", "a b", "unknown"])
    store.queues.limit("bulk", None)
    assert store.queues.rules() == [QueueRule("mail", False, 2)]


def test_a_heartbeat_describes_the_worker(store):
    store.workers.beat(BEAT)
    (found,) = store.workers.present()
    assert state_of(found) == state_of(BEAT)
    assert found.heartbeat_seconds == BEAT.heartbeat_seconds
    assert 0 <= found.heartbeat_age_seconds < 60
    store.db.ahead_seconds = 5
    store.workers.beat(replace(BEAT, busy=0, is_stopping=True, up_seconds=5))
    (again,) = store.workers.present()
    assert (again.busy, again.is_stopping, again.started_at) == (0, True, found.started_at)


def test_stopped_and_dead_workers_have_no_row(store):
    for name, queues in (("a", None), ("b", ()), ("c", ("mail",))):
        store.workers.beat(replace(BEAT, id=name, queues=queues))
    assert names_of(store) == {"a", "b", "c"}
    store.workers.leave("a")
    store.db.ahead_seconds = 30
    store.workers.beat(replace(BEAT, id="c"))
    assert store.workers.prune() == []
    store.db.ahead_seconds = 61
    assert store.workers.prune() == ["b"]
    assert names_of(store) == {"c"}


def test_counts_are_added_to_the_minute_and_the_hour(store):
    now = store.stats.time_ago(0)
    hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    minute = hour + timedelta(minutes=30)
    store.db.ahead_seconds = (minute + timedelta(seconds=10) - now).total_seconds()
    store.stats.add_counts([TypeTally(SHIP, 0, 2, 1, 3, 6.0, 4.0), TypeTally(SHIP, 60, 1, 0, 0, 2.0, 2.0)])
    store.stats.add_counts([TypeTally(SHIP, 0, 1, 0, 0, 7.0, 7.0), TypeTally(MAIL, 0, 0, 0, 1, 0.0, 0.0)])
    store.stats.add_counts([TypeTally(SHIP, 86_400, 9, 0, 0, 0.0, 0.0)])
    shown = store.stats.time_ago(0)
    assert set(store.stats.counts_by_time(shown)) == {
        SpanCount(60, minute, 3, 5),
        SpanCount(60, minute - timedelta(minutes=1), 1, 0),
        SpanCount(3_600, hour, 4, 5),
    }
    assert store.stats.counts_by_type(shown, 5) == [
        TypeRuns(SHIP, 4, 4, 3.0, 7.0),
        TypeRuns(MAIL, 0, 1, 0.0, 0.0),
    ]
    assert store.stats.counts_by_type(shown, 1) == [TypeRuns(SHIP, 4, 4, 3.0, 7.0)]


def test_counts_are_kept_for_hours_and_days(store):
    store.stats.add_counts([TypeTally(SHIP, 0, 1, 0, 0, 1.0, 1.0)])
    assert store.stats.prune_counts() == 0
    for hours, pruned in ((1, 0), (4, 1), (7 * 24, 0), (9 * 24, 1)):
        store.db.ahead_seconds = hours * 3_600
        assert store.stats.prune_counts() == pruned


def test_jobs_are_counted_by_group(store):
    failed, _ = running(store, 2)
    store.attempts.fail([failed_try(failed)])
    create(store, 3, queue="mail")
    create(store, 2, queue="mail", delay_seconds=60)
    groups = [(group.queue, group.type_name, group.due, group.scheduled) for group in store.stats.pending_groups(10)]
    assert groups == [("mail", SHIP, 3, 2)]
    (group,) = store.stats.pending_groups(2)
    assert (group.due, group.scheduled) == (2, 2)
    assert in_order(store.stats.held_groups(10)) == in_order(
        [HeldGroup("running", "default", SHIP, 1), HeldGroup("failed", "default", SHIP, 1)]
    )
    (failing,) = store.stats.failing_types(60)
    assert (failing.name, failing.attempts, failing.crashes, failing.jobs) == (SHIP, 1, 0, 1)
    assert failing.last_error == "Boom: no"
    store.db.ahead_seconds = 61
    assert store.stats.failing_types(60) == []


def names_of(store):
    return {present.id for present in store.workers.present()}


def in_order(groups):
    return sorted(groups)
