"""The states of queues, the rows of workers, and counts."""

from dataclasses import replace
from datetime import timedelta

import pytest

from django_jobchains.models import WorkerPresence
from django_jobchains.store.queues import QueueRule
from django_jobchains.store.stats import HeldGroup, SpanCount, TypeRuns, TypeTally
from django_jobchains.store.workers import Beat
from tests.support.jobs import (
    MAIL,
    SHIP,
    create,
    failed_try,
    running,
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


def test_queues_are_paused_limited_and_resumed(store):
    store.queues.pause(["mail", "a b"])
    store.queues.pause(["mail"])
    store.queues.limit("mail", 2)
    store.queues.limit("bulk", 5)
    assert [*store.queues.rules().queues] == [
        QueueRule("a b", True, None),
        QueueRule("bulk", False, 5),
        QueueRule("mail", True, 2),
    ]
    store.queues.resume(["mail", "a b", "unknown"])
    store.queues.limit("bulk", None)
    assert [*store.queues.rules().queues] == [QueueRule("mail", False, 2)]


def test_a_heartbeat_describes_the_worker(store):
    store.workers.beat(replace(BEAT, up_seconds=3600))
    (found,) = store.workers.present()
    assert state_of(found) == state_of(BEAT)
    assert found.heartbeat_seconds == BEAT.heartbeat_seconds
    assert 0 <= found.heartbeat_age_seconds < 60
    assert 3_600 <= (store.stats.time_ago(0) - found.started_at).total_seconds() < 3_660
    store.db.ahead_seconds = 90
    later = replace(BEAT, busy=0, stuck=0, slots=11, is_stopping=True, heartbeat_seconds=3)
    store.workers.beat(later)
    (again,) = store.workers.present()
    assert (state_of(again), again.heartbeat_seconds, again.started_at) == (state_of(later), 3, found.started_at)
    assert again.heartbeat_age_seconds < 60


def test_constant_columns_of_a_known_worker_are_not_read_again(store):
    store.workers.beat(BEAT)
    known = {worker.id: worker for worker in store.workers.present()}
    WorkerPresence.objects.update(type_names=["changed"], queues=["changed"], busy=7)
    store.workers.beat(other := replace(BEAT, id="other", queues=None))
    found = [state_of(worker) for worker in store.workers.present(known)]
    assert found == [state_of(replace(BEAT, busy=7)), state_of(other)]


def test_changed_types_of_a_worker_are_read_again(store):
    """A worker serves other tasks than at its start: new ones are enqueued, and other workers begin to serve them."""
    store.workers.beat(BEAT)
    known = {}
    for types in (BEAT.type_names, ("shop.new",), ("shop.other",), ()):
        store.workers.beat(replace(BEAT, type_names=types))
        known = {worker.id: worker for worker in store.workers.present(known)}
        assert known[BEAT.id].type_names == types


def test_stopped_workers_and_those_that_missed_six_of_their_heartbeats_have_no_row(store):
    for name, seconds in (("stopped", 10), ("silent", 10), ("rare", 1_000), ("live", 10)):
        store.workers.beat(replace(BEAT, id=name, heartbeat_seconds=seconds))
    store.workers.leave("stopped")
    assert store.workers.count() == 3
    store.db.ahead_seconds = 30
    store.workers.beat(replace(BEAT, id="live"))
    assert store.workers.prune() == []
    store.db.ahead_seconds = 61
    assert store.workers.prune() == ["silent"]
    assert {worker.id for worker in store.workers.present()} == {"rare", "live"}


def test_counts_are_added_to_the_minute_and_the_hour(store):
    now = store.stats.time_ago(0)
    hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    minute = hour + timedelta(minutes=30)
    store.db.ahead_seconds = (minute + timedelta(seconds=10) - now).total_seconds()
    store.stats.add_counts(
        [TypeTally(SHIP, "a", 0, 2, 1, 3, 2, 6.0, 4.0), TypeTally(SHIP, "b", 60, 1, 0, 0, 0, 2.0, 2.0)]
    )
    store.stats.add_counts(
        [TypeTally(SHIP, "a", 0, 1, 0, 0, 0, 7.0, 7.0), TypeTally(MAIL, "a", 0, 0, 0, 1, 1, 0.0, 0.0)]
    )
    store.stats.add_counts([TypeTally(SHIP, "a", 86_400, 9, 0, 0, 0, 0.0, 0.0)])
    shown = store.stats.time_ago(0)
    assert set(store.stats.counts_by_time(shown)) == {
        SpanCount(60, minute, 3, 5, 3),
        SpanCount(60, minute - timedelta(minutes=1), 1, 0, 0),
        SpanCount(3_600, hour, 4, 5, 3),
    }
    assert store.stats.counts_by_type(shown, 5) == [
        TypeRuns(SHIP, 4, 4, 2, 3.0, 7.0),
        TypeRuns(MAIL, 0, 1, 1, 0.0, 0.0),
    ]
    assert store.stats.counts_by_type(shown, 1) == [TypeRuns(SHIP, 4, 4, 2, 3.0, 7.0)]
    day_before = SpanCount(3_600, hour - timedelta(days=1), 9, 0, 0)
    assert day_before in store.stats.counts_by_time(shown, 25)
    assert store.stats.counts_of(shown, 24, type_name=SHIP) == [SpanCount(3_600, hour, 4, 4, 2)]
    found = store.stats.counts_of(shown, 168, queue="a")
    assert sorted(found) == [day_before, SpanCount(3_600, hour, 3, 5, 3)]
    assert store.stats.counts_of(shown, 24, queue="b") == [SpanCount(3_600, hour, 1, 0, 0)]
    assert store.stats.counts_of(shown, 24, type_name="other") == []


def test_counts_are_kept_for_hours_and_days(store):
    store.stats.add_counts([TypeTally(SHIP, "a", 0, 1, 0, 0, 0, 1.0, 1.0)])
    assert store.stats.prune_counts() == 0
    for hours, pruned in ((1, 0), (4, 1), (7 * 24, 0), (9 * 24, 2)):
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
    held = [HeldGroup(status, "default", SHIP, 1) for status in ("failed", "running")]
    assert sorted(store.stats.held_groups(10)) == held
    (failing,) = store.stats.failing_types(60)
    assert (failing.name, failing.attempts, failing.crashes, failing.jobs) == (SHIP, 1, 0, 1)
    assert failing.last_error == "Boom: no"
    store.db.ahead_seconds = 61
    assert store.stats.failing_types(60) == []
