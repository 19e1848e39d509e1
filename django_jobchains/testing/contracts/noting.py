"""What attempts say while they run: kept beside their jobs, by attempts that are still the last of them."""

from typing import Any

import pytest
from django.db import transaction

from django_jobchains.models import JobProgress, LogLine
from django_jobchains.store import ClaimedJob, Effects, Ended, Said, SaidLine, Store
from django_jobchains.testing.contracts.jobs import (
    failed_try,
    finished,
    lines_of,
    next_job,
    running,
    running_job,
    said,
    stored,
    taken_over,
)
from django_jobchains.testing.contracts.keeping import FAR
from django_jobchains.testing.contracts.storing import StoreTests, committing


def progress_of(store: Store, job: ClaimedJob) -> tuple[int, float, str]:
    row = JobProgress.objects.using(store.using).get(job_id=job.id)
    return row.lease_number, row.fraction, row.text


def left(store: Store) -> tuple[int, int]:
    """Log lines and progress that are stored."""
    return LogLine.objects.using(store.using).count(), JobProgress.objects.using(store.using).count()


class Noting(StoreTests):
    def test_lines_and_progress_are_kept_as_they_were_said(self, store: Store) -> None:
        job, other = running(store, 2)
        line = SaidLine(7, 0.0, 40, 'it\'s "quoted" — ünïcode 🫖', '{"a":[1,null,"ü"]}')
        assert store.say([Said(*job.key, job.attempt, [line]), said(other, "x", "y", progress=0.25)]) == set()
        (row,) = LogLine.objects.using(store.using).filter(job_id=job.id)
        assert (row.lease_number, row.attempt, row.position, row.level) == (job.lease_number, 1, 7, 40)
        assert (row.text, row.fields) == (line.text, {"a": [1, None, "ü"]})
        assert lines_of(store, other) == ["x", "y"]
        assert progress_of(store, other) == (other.lease_number, 0.25, "25%")
        store.say([said(other, progress=0.5), said(other, progress=0.75)])
        assert progress_of(store, other) == (other.lease_number, 0.75, "75%")

    def test_the_time_is_the_databases_when_it_was_said(self, store: Store) -> None:
        job = running_job(store)
        store.ahead_seconds = 1_000
        store.say([said(job, "old", progress=0, age_seconds=40)])
        begin = stored(store, job).last_attempt_at
        row = LogLine.objects.using(store.using).get()
        assert begin is not None
        assert 950 <= (row.said_at - begin).total_seconds() < 1_000
        assert abs((JobProgress.objects.using(store.using).get().said_at - row.said_at).total_seconds()) < 1

    def test_what_an_earlier_attempt_says_is_not_kept(self, store: Store) -> None:
        stale = running_job(store)
        store.say([said(stale, "before", progress=0.9)])
        fresh = taken_over(store, stale)
        assert store.say([said(stale, "late", progress=1, first=1), said(fresh, "fresh", progress=0.1)]) == set()
        assert store.say([said(stale, "later", progress=1, first=2)]) == set()
        assert lines_of(store, fresh) == ["before", "fresh"]
        assert progress_of(store, fresh) == (fresh.lease_number, 0.1, "10%")

    def test_progress_of_a_newer_attempt_is_not_replaced(self, store: Store) -> None:
        """As by a statement that began before the newer attempt did."""
        job = running_job(store)
        store.say([said(job, progress=0.1)])
        JobProgress.objects.using(store.using).update(lease_number=job.lease_number + 1)
        store.say([said(job, progress=0.9)])
        assert progress_of(store, job) == (job.lease_number + 1, 0.1, "10%")

    def test_an_attempt_that_has_ended_may_say_its_last(self, store: Store) -> None:
        done, failed = running(store, 2)
        store.finish([finished(done)])
        store.fail([failed_try(failed)])
        assert store.say([said(done, "done", progress=1), said(failed, "failed")]) == set()
        assert (lines_of(store, done), lines_of(store, failed)) == (["done"], ["failed"])

    def test_what_is_said_twice_is_there_once(self, store: Store) -> None:
        job = running_job(store)
        for _ in range(2):
            assert store.say([said(job, "a", "b", progress=0.5)]) == set()
        assert lines_of(store, job) == ["a", "b"]

    def test_lines_are_kept_no_longer_than_is_said(self, store: Store) -> None:
        job, other = running(store, 2)
        store.say([said(job, *"abcdef"), said(other, *"abcdef")])
        more = said(job, *"gh", first=6)
        more.outdated = range(2, 5)
        store.say([more])
        assert lines_of(store, job) == [*"abfgh"]
        assert lines_of(store, other) == [*"abcdef"]

    def test_of_a_job_that_is_gone_nothing_is_kept(self, store: Store) -> None:
        job = running_job(store)
        store.delete([job.chain_id], cascade=False, effects=Effects())
        assert store.say([said(job, "a", progress=0.5)]) == set()
        assert left(store) == (0, 0)

    def test_it_goes_with_the_chain(self, store: Store) -> None:
        first, other = running(store, 2)
        store.finish([finished(first, None, next_job(first))])
        (last,) = store.claim("worker-1", 1, {"contract.mail": 60})
        spoken = [said(job, "a", "b", progress=0.5) for job in (first, last, other)]
        store.say(spoken)
        assert left(store) == (6, 3)
        store.delete([first.chain_id], cascade=False, effects=Effects())
        assert left(store) == (2, 1)
        store.finish([finished(other)])
        assert store.prune([other.id], Ended(("completed",), FAR)).deleted == {other.id}
        assert left(store) == (0, 0)

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_it_is_there_while_the_job_is_locked_to_be_completed(self, store: Store) -> None:
        job = running_job(store)
        self.holding(store, lambda: store.lock(job.id))
        assert self.elsewhere(store, lambda: store.say([said(job, "inside", progress=0.5)])) == set()
        assert (lines_of(store, job), progress_of(store, job)[1]) == (["inside"], 0.5)

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_nobody_who_deletes_a_job_is_waited_for(self, store: Store) -> None:
        doomed, other = running(store, 2)
        store.say([said(doomed, "a", progress=0.1)])
        self.holding(store, lambda: store.delete([doomed.chain_id], cascade=False, effects=Effects()))
        late = [said(doomed, "b", progress=0.2, first=1), said(other, "c", progress=0.3)]
        late[0].outdated = range(1)
        assert self.elsewhere(store, lambda: store.say(late)) == {doomed.key}
        assert lines_of(store, other) == ["c"]

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_a_job_about_which_something_is_being_said_is_deleted_after_it(self, store: Store) -> None:
        job = running_job(store)
        speaking = self.holding(store, lambda: store.say([said(job, "a", progress=0.5)]))
        deleting = self.waiting(store, lambda: self._delete(store, job))
        speaking.result()
        assert deleting.result() == {job.chain_id}
        assert left(store) == (0, 0)

    def _delete(self, store: Store, job: ClaimedJob) -> Any:
        with transaction.atomic(using=store.using):
            return store.delete([job.chain_id], cascade=False, effects=Effects())
