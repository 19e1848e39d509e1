"""Claims return due jobs in their order, and each job to one worker."""

from datetime import timedelta
from random import Random
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from django_jobchains.models import Job
from django_jobchains.store import Store
from django_jobchains.testing.contracts.concurrency import at_once
from tests.store.conftest import locks_rows
from tests.support.connections import committing, elsewhere, holding, waiting
from tests.support.jobs import (
    LEASE_SECONDS,
    MAIL,
    SHIP,
    WORKER,
    alter,
    claim,
    create,
    database_now,
    failed_try,
    new_job,
    row,
    running,
    stored,
)

pytestmark = pytest.mark.django_db

SLACK_SECONDS = 20
#: More than the rounding error of SQLite's julian days.
ROUNDING_SECONDS = 0.001
#: Names that databases sort differently.
NAMES = ("", "B", "a", "a b", "a-b", "a.b", "a_b", "ab", "b", "é", "z", "~")
PRIORITIES = (-32_768, -1, 0, 32_767)
limits = pytest.mark.parametrize("limit", [1, 10])


def claimed_in_turn(store: Store, limit: int = 1) -> list[UUID]:
    ids = []
    while jobs := claim(store, limit):
        ids += [job.id for job in jobs]
    return ids


# The order


@limits
def test_a_higher_priority_goes_first_whatever_its_type_and_queue(store, limit):
    wanted = {32_767: ("z", SHIP), 1: ("a", MAIL), 0: ("default", SHIP), -1: ("a", SHIP), -32_768: ("z", MAIL)}
    ids = {}
    for priority in (0, -1, 32_767, -32_768, 1):
        queue, type_name = wanted[priority]
        (ids[priority],) = create(store, 1, type_name, queue=queue, priority=priority)
    assert claimed_in_turn(store, limit) == [ids[priority] for priority in wanted]


@limits
def test_of_the_same_priority_the_job_due_longest_goes_first_whatever_its_type_and_queue(store, limit):
    due = [
        create(store, 1, (SHIP, MAIL)[number % 2], queue="abc"[number % 3], delay_seconds=100 - number)[0]
        for number in range(10)
    ]
    store.db.ahead_seconds = 200
    assert claimed_in_turn(store, limit) == due[::-1]


@pytest.mark.parametrize("turned", [False, True], ids=["in order", "turned"])
@limits
def test_of_jobs_due_at_the_same_time_the_lowest_id_goes_first_whatever_its_type_and_queue(store, limit, turned):
    """Jobs of one batch are due at the same time, and their ids have the order in which they were enqueued."""
    groups = [(type_name, queue) for type_name in (SHIP, MAIL) for queue in ("z", "a", "m")]
    jobs = [new_job(type_name, queue=queue) for type_name, queue in (groups[::-1] if turned else groups) for _ in "xy"]
    store.jobs.create(jobs)
    assert Job.objects.values("run_at").distinct().count() == 1
    assert claimed_in_turn(store, limit) == [job.id for job in jobs]


def test_many_jobs_of_one_type_do_not_delay_an_older_job_of_another(store):
    (waiting,) = create(store, 1, MAIL)
    create(store, 200, "shop.a_type")
    assert claim(store, 1, types=["shop.a_type", MAIL])[0].id == waiting


@limits
def test_scheduled_jobs_are_not_claimed_and_do_not_hide_due_ones(store, limit):
    (due,) = create(store)
    for type_name, priority in ((SHIP, 100), (MAIL, 100), (SHIP, 0)):
        create(store, 50, type_name, priority=priority, delay_seconds=86_400)
    assert store.jobs.next_due({SHIP: 60.0}) <= ROUNDING_SECONDS
    assert [job.id for job in claim(store, limit)] == [due]


# What is claimed


def test_a_job_that_is_not_due_is_not_claimed(store):
    (job_id,) = create(store, delay_seconds=60)
    assert claim(store) == []
    store.db.ahead_seconds = 61
    assert [job.id for job in claim(store)] == [job_id]


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
    assert [claim(store, 0), claim(store, -1), claim(store, types=[])] == [[], [], []]


@pytest.mark.parametrize("name", ["quo'te", 'dou"ble', "per%cent %s", "back\\slash", "schlüssel-鍵-🔑", "null", "a,b"])
def test_names_of_types_and_queues_are_taken_literally(store, name):
    create(store)
    (named,) = create(store, 1, name, queue=name)
    [job] = store.jobs.claim(WORKER, 10, {name: 60}, [name])
    assert (job.id, job.type_name, job.queue) == (named, name, name)


def test_jobs_of_many_types_are_claimed_in_one_call(store):
    types = [f"shop.type{number:03}" for number in range(300)]
    store.jobs.create([new_job(name) for name in types])
    assert sorted(job.type_name for job in claim(store, types=types)) == types


@pytest.mark.parametrize("seed", range(4))
def test_exactly_the_due_jobs_of_the_given_types_and_queues_are_claimed(store, seed):
    random = Random(seed)
    present, queues = (random.sample(NAMES[1:], random.randint(1, 6)) for _ in range(2))
    every = [(name, {"queue": queue, "priority": n}) for name in present for queue in queues for n in PRIORITIES]
    store.jobs.create([new_job(name, **group) for name, group in random.choices(every, k=random.randint(1, 30))])
    for _ in range(12):
        types = random.sample(NAMES, random.randint(1, 6))
        queues = random.choice([None, random.sample(NAMES, random.randint(0, 6))])
        excluded = random.sample(NAMES, random.choice([0, 0, 1, 4]))
        is_due = store.jobs.next_due(dict.fromkeys(types, 60.0), queues, excluded) is not None
        with transaction.atomic():
            claimed = {job.id for job in claim(store, types=types, queues=queues, excluded=excluded)}
            transaction.set_rollback(True)
        jobs = Job.objects.filter(type_name__in=types).exclude(queue__in=excluded)
        wanted = set((jobs if queues is None else jobs.filter(queue__in=queues)).values_list("id", flat=True))
        assert (claimed, is_due) == (wanted, bool(wanted))


# What a claim writes and returns


def test_a_claim_writes_the_worker_the_lease_and_the_attempt_and_nothing_else(store):
    (job_id,) = create(store, priority=3, max_attempts=4, input='{"a":1}')
    before, start = row(job_id), database_now()
    assert len(claim(store, worker="host-7")) == 1
    after, end = row(job_id), database_now()
    changed = {name: value for name, value in after.items() if value != before[name]}
    assert start <= changed.pop("last_attempt_at") <= end
    assert start + timedelta(seconds=60) <= changed.pop("leased_until") <= end + timedelta(seconds=60)
    assert changed == {"status": "running", "attempt": 1, "lease_number": 1, "leased_by": "host-7"}


def test_a_job_is_returned_as_it_is_stored(store):
    chain_id = create(store, priority=-1)[0]
    claim(store)
    create(
        store, chain_id=chain_id, chain_index=1, chain_type_name="shop.root", queue="mail", priority=7, max_attempts=9
    )
    for last_error in (None, "Boom: 1"):
        [job] = claim(store)
        values, returned = row(job.id), job._asdict()
        assert returned.pop("key") == (job.id, job.lease_number)
        del returned["input"]  # a JSON text
        assert returned.pop("worker") == values["leased_by"]
        assert returned == {name: values[name] for name in returned} | {"reschedules": 0}
        assert (job.chain_id, job.chain_index, job.max_attempts, job.last_error) == (chain_id, 1, 9, last_error)
        store.attempts.reschedule([failed_try(job, error="Boom: 1")])


def test_each_type_has_its_own_lease_duration(store):
    create(store, 1, SHIP)
    create(store, 2, MAIL)
    seconds = {SHIP: 10, MAIL: 90.5}
    for job in store.jobs.claim(WORKER, 10, seconds):
        saved = stored(job)
        assert saved.leased_until - saved.last_attempt_at == timedelta(seconds=seconds[job.type_name])


@committing
def test_a_claim_in_an_old_transaction_gets_a_full_lease(store):
    create(store)
    with transaction.atomic():
        let_time_pass(0.4)
        start = database_now()
        [job] = claim(store)
    assert start + timedelta(seconds=60) <= stored(job).leased_until <= database_now() + timedelta(seconds=60)


@committing
@locks_rows
def test_a_claim_in_an_old_transaction_finds_what_became_due_meanwhile(store):
    with transaction.atomic():
        create(store, delay_seconds=0.3)
        let_time_pass(0.4)
        assert len(claim(store)) == 1


def let_time_pass(seconds: float) -> None:
    """Wait inside of the open transaction, by the database's clock."""
    until = database_now() + timedelta(seconds=seconds)
    while database_now() < until:
        pass


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


# When the next job is due


def next_due(store: Store, *types: str, **options: Any) -> float:
    """Return the seconds until the next job is due. It must be due."""
    due = store.jobs.next_due(dict.fromkeys(types or [SHIP, MAIL], 60.0), **options)
    assert due is not None
    return due


def test_the_earliest_job_of_the_given_types_and_queues_is_the_next(store):
    create(store, 2, delay_seconds=900, queue="a")
    create(store, 1, delay_seconds=600, queue="a")
    create(store, 1, MAIL, delay_seconds=100, queue="b", priority=-5)
    create(store, 1, "shop.other")
    for due, seconds in (
        (next_due(store), 100),
        (next_due(store, excluded=["b"]), 600),
        (next_due(store, SHIP, queues=["a"]), 600),
    ):
        assert seconds - SLACK_SECONDS < due <= seconds + ROUNDING_SECONDS
    assert store.jobs.next_due({SHIP: 60.0}, queues=["c"]) is None


@pytest.mark.parametrize("seconds", [-100, 0.75, 86_400, 100 * 365 * 86_400])
def test_the_time_until_a_job_is_due_is_negative_if_it_is_overdue(store, seconds):
    create(store)
    Job.objects.update(run_at=database_now() + timedelta(seconds=seconds))
    assert seconds - SLACK_SECONDS < next_due(store) <= seconds + ROUNDING_SECONDS


@pytest.mark.parametrize("status", ["blocked", "running", "completed", "failed", "cancelled"])
def test_only_pending_jobs_are_due(store, status):
    alter(running(store), status=status)
    assert store.jobs.next_due({SHIP: 60.0}) is None


def test_the_next_due_time_counts_from_now_and_not_from_the_start_of_the_transaction(store):
    create(store, delay_seconds=5)
    first = next_due(store)
    let_time_pass(0.06)
    assert first - next_due(store) >= 0.05


# Concurrent claims


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


@committing
@locks_rows
def test_a_claim_does_not_wait_for_a_job_that_is_being_deleted(store):
    deleted, free = create(store, 2)
    other = holding(lambda store: Job.objects.filter(pk=deleted).delete())
    assert [job.id for job in claim(store)] == [free]
    other.result()
    assert claim(store) == []
