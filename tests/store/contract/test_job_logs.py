"""The log and the progress of attempts, which only the last attempt of a job can write."""

import pytest

from django_jobchains.models import JobProgress, LogLine
from django_jobchains.store.retention import EndedChains
from django_jobchains.store.rows import Effects, LogEntries, NewLogLine
from tests.store.conftest import with_locks
from tests.store.contract.test_retention import FAR
from tests.support.connections import elsewhere, holding, waiting
from tests.support.jobs import (
    claim,
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

pytestmark = pytest.mark.django_db


def progress_of(job):
    row = JobProgress.objects.get(job_id=job.id)
    return row.lease_number, row.fraction, row.text


def left():
    """Return the numbers of stored log lines and progress rows."""
    return LogLine.objects.count(), JobProgress.objects.count()


def test_lines_and_progress_are_stored_unchanged(store):
    job, other = running(store, 2)
    line = NewLogLine(7, 0.0, 40, 'it\'s "quoted" — ünïcode 🫖', '{"a":[1,null,"ü"]}')
    written = [LogEntries(*job.key, job.attempt, [line]), entries(other, "x", "y", progress=0.25)]
    assert store.logs.write(written) == set()
    (row,) = LogLine.objects.filter(job_id=job.id)
    assert (row.lease_number, row.attempt, row.position, row.level) == (job.lease_number, 1, 7, 40)
    assert (row.text, row.fields) == (line.text, {"a": [1, None, "ü"]})
    assert lines_of(other) == ["x", "y"]
    assert progress_of(other) == (other.lease_number, 0.25, "25%")
    store.logs.write([entries(other, progress=0.5), entries(other, progress=0.75)])
    assert progress_of(other) == (other.lease_number, 0.75, "75%")


def test_a_line_has_the_databases_time_of_its_call(store):
    job = running_job(store)
    store.db.ahead_seconds = 1_000
    store.logs.write([entries(job, "old", progress=0, age_seconds=40)])
    begin = stored(job).last_attempt_at
    row = LogLine.objects.get()
    assert begin is not None
    assert 950 <= (row.logged_at - begin).total_seconds() < 1_000
    assert abs((JobProgress.objects.get().logged_at - row.logged_at).total_seconds()) < 20


def test_lines_of_an_earlier_attempt_are_not_stored(store):
    stale = running_job(store)
    store.logs.write([entries(stale, "before", progress=0.9)])
    fresh = taken_over(store, stale)
    late = [entries(stale, "late", progress=1, first=1), entries(fresh, "fresh", progress=0.1)]
    assert store.logs.write(late) == set()
    assert store.logs.write([entries(stale, "later", progress=1, first=2)]) == set()
    assert lines_of(fresh) == ["before", "fresh"]
    assert progress_of(fresh) == (fresh.lease_number, 0.1, "10%")


def test_progress_of_a_newer_attempt_is_not_replaced(store):
    """A statement of an earlier attempt may begin before the newer attempt, and end after it has begun."""
    job = running_job(store)
    store.logs.write([entries(job, progress=0.1)])
    JobProgress.objects.update(lease_number=job.lease_number + 1)
    store.logs.write([entries(job, progress=0.9)])
    assert progress_of(job) == (job.lease_number + 1, 0.1, "10%")


def test_an_attempt_that_has_ended_may_still_log(store):
    done, failed = running(store, 2)
    store.attempts.finish([finished(done)])
    store.attempts.fail([failed_try(failed)])
    assert store.logs.write([entries(done, "done", progress=1), entries(failed, "failed")]) == set()
    assert (lines_of(done), lines_of(failed)) == (["done"], ["failed"])


def test_a_repeated_line_is_stored_once(store):
    job = running_job(store)
    for _ in range(2):
        assert store.logs.write([entries(job, "a", "b", progress=0.5)]) == set()
    assert lines_of(job) == ["a", "b"]


def test_outdated_lines_are_deleted(store):
    job, other = running(store, 2)
    store.logs.write([entries(job, *"abcdef"), entries(other, *"abcdef")])
    more = entries(job, *"gh", first=6)
    more.outdated = range(2, 5)
    store.logs.write([more])
    assert lines_of(job) == [*"abfgh"]
    assert lines_of(other) == [*"abcdef"]


def test_lines_of_a_deleted_job_are_not_stored(store):
    job = running_job(store)
    store.chains.delete([job.chain_id], cascade=False, effects=Effects())
    assert store.logs.write([entries(job, "a", progress=0.5)]) == set()
    assert left() == (0, 0)


def test_lines_are_deleted_with_the_chain(store):
    first, other = running(store, 2)
    store.attempts.finish([finished(first, None, next_job(first))])
    (last,) = claim(store)
    spoken = [entries(job, "a", "b", progress=0.5) for job in (first, last, other)]
    store.logs.write(spoken)
    assert left() == (6, 3)
    store.chains.delete([first.chain_id], cascade=False, effects=Effects())
    assert left() == (2, 1)
    store.attempts.finish([finished(other)])
    assert store.retention.prune([other.id], EndedChains(("completed",), FAR)).deleted == {other.id}
    assert left() == (0, 0)


@with_locks
def test_lines_are_visible_while_the_job_is_being_completed(store):
    job = running_job(store)
    holding(lambda store: store.attempts.lock(job.id))
    assert elsewhere(lambda store: store.logs.write([entries(job, "inside", progress=0.5)])) == set()
    assert (lines_of(job), progress_of(job)[1]) == (["inside"], 0.5)


@with_locks
def test_a_log_does_not_wait_for_the_deletion_of_a_job(store):
    doomed, other = running(store, 2)
    store.logs.write([entries(doomed, "a", progress=0.1)])
    holding(lambda store: store.chains.delete([doomed.chain_id], cascade=False, effects=Effects()))
    late = [entries(doomed, "b", progress=0.2, first=1), entries(other, "c", progress=0.3)]
    late[0].outdated = range(1)
    assert elsewhere(lambda store: store.logs.write(late)) == {doomed.key}
    assert lines_of(other) == ["c"]


@with_locks
def test_a_deletion_waits_for_the_log_of_the_job(store):
    job = running_job(store)
    speaking = holding(lambda store: store.logs.write([entries(job, "a", progress=0.5)]))
    deleting = waiting(lambda store: store.chains.delete([job.chain_id], cascade=False, effects=Effects()))
    speaking.result()
    assert deleting.result() == {job.chain_id}
    assert left() == (0, 0)
