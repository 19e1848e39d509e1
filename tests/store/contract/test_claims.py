"""Claims return due jobs in their order, and each job to one worker."""

from datetime import timedelta
from uuid import UUID

import pytest

from django_jobchains.models import Job
from django_jobchains.testing.contracts.concurrency import at_once
from tests.store.conftest import locks_rows
from tests.support.connections import committing, elsewhere, holding, waiting
from tests.support.jobs import (
    LEASE_SECONDS,
    MAIL,
    SHIP,
    claim,
    create,
    failed_try,
    finished,
    running,
    stored,
)

pytestmark = pytest.mark.django_db


def test_a_higher_priority_goes_first_whatever_its_type_and_queue(store):
    wanted = {2: ("z", SHIP), 1: ("a", MAIL), 0: ("default", SHIP), -1: ("a", SHIP)}
    for priority in (0, -1, 2, 1):
        queue, type_name = wanted[priority]
        create(store, 1, type_name, queue=queue, priority=priority)
    assert [job.priority for job in claim(store, 3)] == [2, 1, 0]
    assert [job.priority for job in claim(store, 3)] == [-1]


def test_of_the_same_priority_the_job_due_longest_goes_first(store):
    second, third, first = (create(store, delay_seconds=seconds)[0] for seconds in (20, 30, 10))
    store.db.ahead_seconds = 60
    assert [claim(store, 1)[0].id for _ in range(3)] == [first, second, third]


def test_of_jobs_due_at_the_same_time_the_lowest_id_goes_first(store):
    ids = create(store, 20)
    assert [job.id for job in claim(store, 5)] == ids[:5]
    assert [job.id for job in claim(store, 15)] == ids[5:]


def test_a_job_that_is_not_due_is_not_claimed(store):
    (job_id,) = create(store, delay_seconds=60)
    assert claim(store) == []
    store.db.ahead_seconds = 61
    assert [job.id for job in claim(store)] == [job_id]


def test_only_the_given_types_are_claimed(store):
    create(store, 3, "contract.other", priority=9)
    (wanted,) = create(store, 1, MAIL)
    assert [job.id for job in claim(store, types=[MAIL, "contract.unknown"])] == [wanted]


def test_only_the_given_queues_are_claimed(store):
    ids = {queue: create(store, queue=queue)[0] for queue in ("a", "b", "c", "d")}
    assert [job.id for job in claim(store, queues=["b", "unknown"])] == [ids["b"]]
    assert claim(store, queues=["c"], excluded=["c"]) == []
    assert claim(store, queues=[]) == []
    assert {job.id for job in claim(store, excluded=["a"])} == {ids["c"], ids["d"]}


def test_jobs_of_paused_queues_are_not_claimed(store):
    ids = {queue: create(store, queue=queue)[0] for queue in ("a", "b")}
    store.queues.pause(["a"])
    assert store.jobs.next_due({SHIP: LEASE_SECONDS}, queues=["a"]) is None
    assert claim(store, queues=["a"]) == []
    assert [job.id for job in claim(store)] == [ids["b"]]
    store.queues.resume(["a"])
    assert [job.id for job in claim(store)] == [ids["a"]]


def test_the_limit_applies_to_all_types_queues_and_priorities_together(store):
    for priority in (0, 1):
        for type_name in (SHIP, MAIL):
            create(store, 3, type_name, queue=f"queue-{priority}", priority=priority)
    assert [len(claim(store, limit)) for limit in (5, 4, 9, 1)] == [5, 4, 3, 0]


def test_an_empty_claim_returns_nothing(store):
    create(store)
    assert (claim(store, 0), claim(store, types=[])) == ([], [])


def test_a_claim_begins_an_attempt(store):
    (job_id,) = create(store, input='{"order": 1}', context='{"tenant": 7}', max_attempts=3, priority=4)
    (job,) = store.jobs.claim("worker-9", 1, {SHIP: 120.0, MAIL: 5.0})
    saved = stored(job_id)
    assert (job.attempt, job.lease_number, job.max_attempts, job.priority) == (1, 1, 3, 4)
    assert (saved.status, saved.attempt, saved.lease_number, saved.leased_by) == ("running", 1, 1, "worker-9")
    assert (job.run_at, job.created_at, job.last_error) == (saved.run_at, saved.created_at, None)
    assert saved.leased_until is not None
    assert saved.last_attempt_at is not None
    lease_time = saved.leased_until - saved.last_attempt_at
    assert abs(lease_time - timedelta(seconds=120)) < timedelta(milliseconds=5)


def test_running_blocked_and_final_jobs_are_not_claimed(store):
    done, failed, going_on = running(store, 3)
    store.attempts.finish([finished(done)])
    store.attempts.fail([failed_try(failed)])
    create(store, blockers=(going_on.chain_id,))
    assert claim(store) == []


def test_each_claim_has_a_new_lease_number(store):
    (job_id,) = create(store)
    numbers = []
    for _ in range(3):
        (job,) = claim(store)
        numbers.append(job.lease_number)
        store.attempts.reschedule([failed_try(job, delay_seconds=0)])
        store.db.ahead_seconds += 1
    assert numbers == [1, 2, 3]
    assert stored(job_id).attempt == 3


def test_the_next_due_time_is_known(store):
    leases = dict.fromkeys((SHIP, MAIL), LEASE_SECONDS)
    assert store.jobs.next_due(leases) is None
    create(store, delay_seconds=600, queue="a")
    create(store, 1, MAIL, delay_seconds=100, queue="b", priority=5)
    create(store, 1, "contract.other")
    assert 90 < (store.jobs.next_due(leases) or 0) < 101
    assert 590 < (store.jobs.next_due(leases, excluded=["b"]) or 0) < 601
    assert 590 < (store.jobs.next_due({SHIP: 1.0}, queues=["a"]) or 0) < 601
    assert store.jobs.next_due(leases, queues=["c"]) is None
    create(store)
    due = store.jobs.next_due(leases)
    assert due is not None
    assert due < 0.01


@committing
def test_two_connections_share_no_job_and_together_claim_all(store):
    created = create(store, 30) + create(store, 30, MAIL)

    def claim_all() -> list[UUID]:
        ids: list[UUID] = []
        while jobs := claim(store, 4):
            ids += [job.id for job in jobs]
        return ids

    claimed = [job_id for ids in at_once([claim_all, claim_all]) for job_id in ids]
    claimed += [job.id for job in claim(store)]  # The jobs that each skipped because the other had locked them.
    assert sorted(claimed) == sorted(created)


@committing
def test_a_claim_during_an_uncommitted_one_takes_other_jobs(store):
    created = create(store, 10)
    first = holding(lambda store: claim(store, 5))
    second = waiting(lambda store: claim(store, 5, "worker-2"))
    first.go_on()
    assert sorted(job.id for job in first.result() + second.result()) == created
    assert len(first.result()) == len(second.result()) == 5


@committing
def test_a_claim_that_is_rolled_back_leaves_its_jobs(store):
    created = create(store, 3)
    first = holding(lambda store: claim(store))
    second = waiting(lambda store: claim(store, worker="worker-2"))
    first.go_on(roll_back=True)
    first.result()
    again = second.result() + claim(store, worker="worker-2")  # The second may not have waited.
    assert sorted(job.id for job in again) == created
    assert set(Job.objects.values_list("attempt", "leased_by")) == {(1, "worker-2")}


@committing
@locks_rows
def test_a_locked_job_is_skipped_and_others_are_claimed(store):
    locked = create(store, 2, SHIP, priority=5)
    free = create(store, 2)
    holding(lambda store: [store.attempts.lock(job_id) for job_id in locked])
    assert [job.id for job in elsewhere(lambda store: claim(store, 2))] == free
    assert elsewhere(lambda store: claim(store)) == []
