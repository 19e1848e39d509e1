"""The log and the progress of attempts, which only the last attempt of a job can write."""

from typing import Any

import pytest
from django.db import transaction

from django_jobchains.models import JobProgress, LogLine
from django_jobchains.store import ClaimedJob, Effects, EndedChains, LogEntries, NewLogLine, Store
from tests.store.contract.jobs import (
    entries,
    failed_try,
    finished,
    lines_of,
    next_job,
    running,
    running_job,
    stored,
    taken_over,
)
from tests.store.contract.store_tests import StoreTests, committing
from tests.store.contract.test_maintenance import FAR


def progress_of(store: Store, job: ClaimedJob) -> tuple[int, float, str]:
    row = JobProgress.objects.using(store.using).get(job_id=job.id)
    return row.lease_number, row.fraction, row.text


def left(store: Store) -> tuple[int, int]:
    """Return the numbers of stored log lines and progress rows."""
    return LogLine.objects.using(store.using).count(), JobProgress.objects.using(store.using).count()


class TestJobLogs(StoreTests):
    def test_lines_and_progress_are_stored_unchanged(self, store: Store) -> None:
        job, other = running(store, 2)
        line = NewLogLine(7, 0.0, 40, 'it\'s "quoted" — ünïcode 🫖', '{"a":[1,null,"ü"]}')
        written = [LogEntries(*job.key, job.attempt, [line]), entries(other, "x", "y", progress=0.25)]
        assert store.logs.write(written) == set()
        (row,) = LogLine.objects.using(store.using).filter(job_id=job.id)
        assert (row.lease_number, row.attempt, row.position, row.level) == (job.lease_number, 1, 7, 40)
        assert (row.text, row.fields) == (line.text, {"a": [1, None, "ü"]})
        assert lines_of(store, other) == ["x", "y"]
        assert progress_of(store, other) == (other.lease_number, 0.25, "25%")
        store.logs.write([entries(other, progress=0.5), entries(other, progress=0.75)])
        assert progress_of(store, other) == (other.lease_number, 0.75, "75%")

    def test_a_line_has_the_databases_time_of_its_call(self, store: Store) -> None:
        job = running_job(store)
        store.db.ahead_seconds = 1_000
        store.logs.write([entries(job, "old", progress=0, age_seconds=40)])
        begin = stored(store, job).last_attempt_at
        row = LogLine.objects.using(store.using).get()
        assert begin is not None
        assert 950 <= (row.logged_at - begin).total_seconds() < 1_000
        assert abs((JobProgress.objects.using(store.using).get().logged_at - row.logged_at).total_seconds()) < 20

    def test_lines_of_an_earlier_attempt_are_not_stored(self, store: Store) -> None:
        stale = running_job(store)
        store.logs.write([entries(stale, "before", progress=0.9)])
        fresh = taken_over(store, stale)
        late = [entries(stale, "late", progress=1, first=1), entries(fresh, "fresh", progress=0.1)]
        assert store.logs.write(late) == set()
        assert store.logs.write([entries(stale, "later", progress=1, first=2)]) == set()
        assert lines_of(store, fresh) == ["before", "fresh"]
        assert progress_of(store, fresh) == (fresh.lease_number, 0.1, "10%")

    def test_progress_of_a_newer_attempt_is_not_replaced(self, store: Store) -> None:
        """A statement of an earlier attempt may begin before the newer attempt, and end after it has begun."""
        job = running_job(store)
        store.logs.write([entries(job, progress=0.1)])
        JobProgress.objects.using(store.using).update(lease_number=job.lease_number + 1)
        store.logs.write([entries(job, progress=0.9)])
        assert progress_of(store, job) == (job.lease_number + 1, 0.1, "10%")

    def test_an_attempt_that_has_ended_may_still_log(self, store: Store) -> None:
        done, failed = running(store, 2)
        store.attempts.finish([finished(done)])
        store.attempts.fail([failed_try(failed)])
        assert store.logs.write([entries(done, "done", progress=1), entries(failed, "failed")]) == set()
        assert (lines_of(store, done), lines_of(store, failed)) == (["done"], ["failed"])

    def test_a_repeated_line_is_stored_once(self, store: Store) -> None:
        job = running_job(store)
        for _ in range(2):
            assert store.logs.write([entries(job, "a", "b", progress=0.5)]) == set()
        assert lines_of(store, job) == ["a", "b"]

    def test_outdated_lines_are_deleted(self, store: Store) -> None:
        job, other = running(store, 2)
        store.logs.write([entries(job, *"abcdef"), entries(other, *"abcdef")])
        more = entries(job, *"gh", first=6)
        more.outdated = range(2, 5)
        store.logs.write([more])
        assert lines_of(store, job) == [*"abfgh"]
        assert lines_of(store, other) == [*"abcdef"]

    def test_lines_of_a_deleted_job_are_not_stored(self, store: Store) -> None:
        job = running_job(store)
        store.chains.delete([job.chain_id], cascade=False, effects=Effects())
        assert store.logs.write([entries(job, "a", progress=0.5)]) == set()
        assert left(store) == (0, 0)

    def test_lines_are_deleted_with_the_chain(self, store: Store) -> None:
        first, other = running(store, 2)
        store.attempts.finish([finished(first, None, next_job(first))])
        (last,) = store.jobs.claim("worker-1", 1, {"contract.mail": 60})
        spoken = [entries(job, "a", "b", progress=0.5) for job in (first, last, other)]
        store.logs.write(spoken)
        assert left(store) == (6, 3)
        store.chains.delete([first.chain_id], cascade=False, effects=Effects())
        assert left(store) == (2, 1)
        store.attempts.finish([finished(other)])
        assert store.retention.prune([other.id], EndedChains(("completed",), FAR)).deleted == {other.id}
        assert left(store) == (0, 0)

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_lines_are_visible_while_the_job_is_being_completed(self, store: Store) -> None:
        job = running_job(store)
        self.holding(store, lambda: store.attempts.lock(job.id))
        assert self.elsewhere(store, lambda: store.logs.write([entries(job, "inside", progress=0.5)])) == set()
        assert (lines_of(store, job), progress_of(store, job)[1]) == (["inside"], 0.5)

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_a_log_does_not_wait_for_the_deletion_of_a_job(self, store: Store) -> None:
        doomed, other = running(store, 2)
        store.logs.write([entries(doomed, "a", progress=0.1)])
        self.holding(store, lambda: store.chains.delete([doomed.chain_id], cascade=False, effects=Effects()))
        late = [entries(doomed, "b", progress=0.2, first=1), entries(other, "c", progress=0.3)]
        late[0].outdated = range(1)
        assert self.elsewhere(store, lambda: store.logs.write(late)) == {doomed.key}
        assert lines_of(store, other) == ["c"]

    @committing
    @pytest.mark.usefixtures("_locks_rows")
    def test_a_deletion_waits_for_the_log_of_the_job(self, store: Store) -> None:
        job = running_job(store)
        speaking = self.holding(store, lambda: store.logs.write([entries(job, "a", progress=0.5)]))
        deleting = self.waiting(store, lambda: self._delete(store, job))
        speaking.result()
        assert deleting.result() == {job.chain_id}
        assert left(store) == (0, 0)

    def _delete(self, store: Store, job: ClaimedJob) -> Any:
        with transaction.atomic(using=store.using):
            return store.chains.delete([job.chain_id], cascade=False, effects=Effects())
