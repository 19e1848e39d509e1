"""The lock a completion takes on its job's row, and the look without one."""

import pytest
from django.db import transaction

from django_jobchains.ids import new_id
from django_jobchains.statuses import Status
from django_jobchains.store import Store
from tests.store.connections import committing, holding, waiting
from tests.store.jobs import alter, create, finished, lease, running, running_job, stored, tables

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("status", Status)
def test_lock_and_look_tell_the_status_and_the_lease_number(store: Store, status: Status) -> None:
    job = running_job(store)
    alter([job], status=status, lease_number=5)
    before = tables()
    assert store.lock(job.id) == (status, 5)
    assert store.look(job.id) == (status, 5)
    assert tables() == before


def test_a_job_that_was_never_claimed_has_lease_number_0(store: Store) -> None:
    [job_id] = create(store)
    assert store.lock(job_id) == ("pending", 0)


def test_a_job_that_is_gone_is_none(store: Store) -> None:
    create(store)
    assert store.lock(new_id()) is None
    assert store.look(new_id()) is None


@committing
def test_a_locked_row_is_written_by_nobody_else_before_the_transaction_ends(store: Store) -> None:
    job = running_job(store)
    completing = holding(lambda store: store.lock(job.id))
    other = waiting(lambda store: store.hand_back([lease(job)]))
    assert stored(job).status == "running"
    completing.go_on()
    completing.result()
    assert other.result() or store.hand_back([lease(job)])  # it skips a row that is locked


@committing
def test_lock_waits_for_who_writes_and_tells_what_was_written(store: Store) -> None:
    job = running_job(store)
    writing = holding(lambda store: store.finish([finished(job)]))
    locking = waiting(lambda store: store.lock(job.id))
    writing.go_on()
    assert locking.result() == ("completed", job.lease_number)


@committing
def test_a_look_waits_for_nobody_and_tells_what_is_committed(store: Store) -> None:
    job = running_job(store)
    writing = holding(lambda store: store.finish([finished(job)]))
    assert store.look(job.id) == ("running", job.lease_number)
    writing.result()
    assert store.look(job.id) == ("completed", job.lease_number)


@committing
def test_the_holder_of_the_lock_may_write(store: Store) -> None:
    job, other = running(store, 2)
    with transaction.atomic():
        store.lock(job.id)
        assert store.finish([finished(job)]) == {job.key}
    assert (stored(job).status, stored(other).status) == ("completed", "running")
