"""What is kept beside jobs: queues' rules, workers' rows, counts; and old chains, which go."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from django_jobchains.models import Job
from django_jobchains.store import (
    Beat,
    Ended,
    HeldGroup,
    Place,
    QueueRule,
    SpanCount,
    Store,
    TypeCount,
    TypeTally,
)
from django_jobchains.testing.contracts.jobs import (
    MAIL,
    SHIP,
    create,
    failed_try,
    finished,
    next_job,
    running,
    running_job,
)
from django_jobchains.testing.contracts.storing import StoreTests, committing

BEAT = Beat(
    worker="host:1:a",
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


def completed(store: Store, count: int = 1, **changes: Any) -> list[UUID]:
    jobs = running(store, count, **changes)
    store.finish([finished(job) for job in jobs])
    return [job.id for job in jobs]


def prune(store: Store, ended: Ended, limit: int = 1_000) -> set[UUID]:
    """Walks along the index, and deletes what was found."""
    deleted: set[UUID] = set()
    place: Place | None = Place(UUID(int=0))
    while place is not None:
        found = store.find_ended("status", ended.statuses[0], place, LAST_OF_ALL, limit, ended)
        deleted |= store.prune(found.job_ids, ended).deleted
        place = found.next
    return deleted


def left(store: Store) -> set[UUID]:
    return set(Job.objects.using(store.using).values_list("chain_id", flat=True))


class Keeping(StoreTests):
    def test_chains_go_that_ended_so_and_so_long_ago(self, store: Store) -> None:
        old = completed(store, 3)
        failed = running_job(store)
        store.fail([failed_try(failed)])
        store.ahead_seconds = 600
        young = completed(store)
        (open_,) = create(store, delay_seconds=600)
        assert prune(store, Ended(("completed",), store.time_ago(300))) == set(old)
        assert left(store) == {failed.id, open_, *young}
        assert prune(store, Ended(("failed",), store.time_ago(300))) == {failed.id}

    def test_a_chain_is_old_by_its_last_job(self, store: Store) -> None:
        job = running_job(store)
        store.finish([finished(job, None, next_job(job, delay_seconds=600))])
        assert prune(store, Ended(("completed",), FAR)) == set()
        assert left(store) == {job.chain_id}

    def test_only_the_types_and_keys_that_are_asked_for_go(self, store: Store) -> None:
        ship, mail = completed(store), completed(store, type_name=MAIL)
        keyed = completed(store, type_name=MAIL, deduplication_key="k")
        assert prune(store, Ended(("completed",), FAR, (MAIL,), keyed=False)) == set(mail)
        assert left(store) == {*ship, *keyed}

    def test_a_walk_sees_each_once_however_short_its_steps(self, store: Store) -> None:
        ids = completed(store, 7)
        ended, place, found = Ended(("completed",), FAR), Place(UUID(int=0)), list[UUID]()
        for _ in ids:
            step = store.find_ended("status", "completed", place, LAST_OF_ALL, 3, ended)
            found += step.job_ids
            if step.next is None:
                break
            place = step.next
        assert found == ids

    def test_a_chain_that_is_needed_stays(self, store: Store) -> None:
        (blocker,) = completed(store)
        (needs,) = create(store, 1, MAIL, blockers=(blocker,), delay_seconds=600)
        ended = Ended(("completed",), FAR)
        assert store.prune([blocker], ended) == (set(), {blocker})
        assert left(store) == {blocker, needs}

    def test_a_dry_run_deletes_nothing(self, store: Store) -> None:
        ids = completed(store, 2)
        assert store.prune(ids, Ended(("completed",), FAR), is_dry_run=True).deleted == set(ids)
        assert left(store) == set(ids)

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_a_chain_that_somebody_has_locked_stays(self, store: Store) -> None:
        locked, free = completed(store, 2)
        self.holding(store, lambda: store.lock(locked))
        assert self.elsewhere(store, lambda: prune(store, Ended(("completed",), FAR))) == {free}

    def test_queues_are_paused_limited_and_resumed(self, store: Store) -> None:
        store.pause_queues(["mail", "a b"])
        store.pause_queues(["mail"])
        store.limit_queue("mail", 2)
        store.limit_queue("bulk", 5)
        assert store.queue_rules() == [
            QueueRule("a b", True, None),
            QueueRule("bulk", False, 5),
            QueueRule("mail", True, 2),
        ]
        store.resume_queues(["mail", "a b", "unknown"])
        store.limit_queue("bulk", None)
        assert store.queue_rules() == [QueueRule("mail", False, 2)]

    def test_a_beat_says_all_about_a_worker(self, store: Store) -> None:
        store.beat(BEAT)
        (found,) = store.present_workers()
        assert found.beat == BEAT
        assert 0 <= found.silent_seconds < 60
        store.ahead_seconds = 5
        store.beat(replace(BEAT, busy=0, is_stopping=True, up_seconds=5))
        (again,) = store.present_workers()
        assert (again.beat.busy, again.beat.is_stopping, again.started_at) == (0, True, found.started_at)

    def test_workers_that_leave_or_are_silent_for_long_have_no_row(self, store: Store) -> None:
        for name, queues in (("a", None), ("b", ()), ("c", ("mail",))):
            store.beat(replace(BEAT, worker=name, queues=queues))
        assert names_of(store) == {"a", "b", "c"}
        store.leave("a")
        store.ahead_seconds = 59
        store.beat(replace(BEAT, worker="c"))
        assert store.prune_workers() == []
        store.ahead_seconds = 61
        assert store.prune_workers() == ["b"]
        assert names_of(store) == {"c"}

    def test_what_workers_tell_is_added_to_the_minute_and_the_hour(self, store: Store) -> None:
        now = store.time_ago(0)
        hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
        minute = hour + timedelta(minutes=30)
        store.ahead_seconds = (minute + timedelta(seconds=10) - now).total_seconds()
        store.add_counts([TypeTally(SHIP, 0, 2, 1, 3, 6.0, 4.0), TypeTally(SHIP, 60, 1, 0, 0, 2.0, 2.0)])
        store.add_counts([TypeTally(SHIP, 0, 1, 0, 0, 7.0, 7.0), TypeTally(MAIL, 0, 0, 0, 1, 0.0, 0.0)])
        store.add_counts([TypeTally(SHIP, 86_400, 9, 0, 0, 0.0, 0.0)])
        shown = store.time_ago(0)
        assert set(store.counts_by_time(shown)) == {
            SpanCount(60, minute, 3, 5),
            SpanCount(60, minute - timedelta(minutes=1), 1, 0),
            SpanCount(3_600, hour, 4, 5),
        }
        assert store.counts_by_type(shown, 5) == [TypeCount(SHIP, 4, 4, 3.0, 7.0), TypeCount(MAIL, 0, 1, 0.0, 0.0)]
        assert store.counts_by_type(shown, 1) == [TypeCount(SHIP, 4, 4, 3.0, 7.0)]

    def test_counts_are_kept_for_hours_and_days(self, store: Store) -> None:
        store.add_counts([TypeTally(SHIP, 0, 1, 0, 0, 1.0, 1.0)])
        assert store.prune_counts() == 0
        for hours, pruned in ((1, 0), (4, 1), (7 * 24, 0), (9 * 24, 1)):
            store.ahead_seconds = hours * 3_600
            assert store.prune_counts() == pruned

    def test_what_there_is_is_counted(self, store: Store) -> None:
        failed, _ = running(store, 2)
        store.fail([failed_try(failed)])
        create(store, 3, queue="mail")
        create(store, 2, queue="mail", delay_seconds=60)
        groups = [(group.queue, group.type_name, group.due, group.scheduled) for group in store.pending_groups(10)]
        assert groups == [("mail", SHIP, 3, 2)]
        (group,) = store.pending_groups(2)
        assert (group.due, group.scheduled) == (2, 2)
        assert in_order(store.held_groups(10)) == in_order(
            [HeldGroup("running", "default", SHIP, 1), HeldGroup("failed", "default", SHIP, 1)]
        )
        (failing,) = store.failing_groups(60)
        assert (failing.type_name, failing.attempts, failing.crashes, failing.jobs) == (SHIP, 1, 0, 1)
        assert failing.error == "Boom: no"
        store.ahead_seconds = 61
        assert store.failing_groups(60) == []


def names_of(store: Store) -> set[str]:
    return {present.beat.worker for present in store.present_workers()}


def in_order(groups: Iterable[HeldGroup]) -> list[HeldGroup]:
    return sorted(groups)
