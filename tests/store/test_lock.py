"""Locking a job's row, and reading its state without a lock."""

import pytest

from django_jobchains.db.ids import new_id
from django_jobchains.store import Store
from tests.support.connections import committing, holding, waiting
from tests.support.jobs import create, finished, running_job, stored

pytestmark = pytest.mark.django_db


def test_state_of_a_deleted_job_is_none(store: Store) -> None:
    create(store)
    assert store.attempts.lock(new_id()) is None
    assert store.jobs.state_of(new_id()) is None


@committing
def test_locked_row_is_not_written_by_others_before_the_transaction_ends(store: Store) -> None:
    job = running_job(store)
    completing = holding(lambda store: store.attempts.lock(job.id))
    other = waiting(lambda store: store.attempts.hand_back([job.key]))
    assert stored(job).status == "running"
    completing.go_on()
    completing.result()
    assert other.result() or store.attempts.hand_back([job.key])  # it may have skipped the locked row


@committing
def test_lock_waits_for_a_write_and_returns_the_new_state(store: Store) -> None:
    job = running_job(store)
    writing = holding(lambda store: store.attempts.finish([finished(job)]))
    locking = waiting(lambda store: store.attempts.lock(job.id))
    writing.go_on()
    assert locking.result() == ("completed", job.lease_number)


@committing
def test_reading_the_state_does_not_wait_and_returns_the_committed_state(store: Store) -> None:
    job = running_job(store)
    writing = holding(lambda store: store.attempts.finish([finished(job)]))
    assert store.jobs.state_of(job.id) == ("running", job.lease_number)
    writing.result()
    assert store.jobs.state_of(job.id) == ("completed", job.lease_number)
