"""Claims return due jobs in their order, and each job to one worker."""

from datetime import timedelta
from itertools import product
from random import Random

import pytest
from django.db import transaction

from django_jobchains.models import Job
from tests.store.conftest import with_locks
from tests.support.connections import committing, elsewhere, holding, waiting
from tests.support.jobs import (
    LEASE_SECONDS,
    MAIL,
    SHIP,
    WORKER,
    changes,
    claim,
    create,
    database_now,
    failed_try,
    new_job,
    row,
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


# The order


@limits
@pytest.mark.parametrize("seed", range(3))
def test_jobs_are_claimed_by_priority_due_time_and_id_whatever_their_types_and_queues(store, limit, seed):
    """A claim takes the jobs of a type, queue and priority together, so there is one due job of each."""
    random = Random(seed)
    groups = list(product((SHIP, MAIL), ("z", "a", "m"), PRIORITIES))
    random.shuffle(groups)
    due = [new_job(name, queue=queue, priority=n, delay_seconds=random.choice([3, 5])) for name, queue, n in groups]
    scheduled = [new_job(name, queue=queue, priority=n, delay_seconds=3600) for name, queue, n in groups[::2]]
    store.jobs.create(scheduled + due)
    store.db.ahead_seconds = 10
    wanted = sorted(due, key=lambda job: (-job.priority, job.delay_seconds, job.id))
    assert store.jobs.next_due({SHIP: 60.0, MAIL: 60.0}) < 0
    assert [job.id for _ in range(0, 24, limit) for job in claim(store, limit)] == [job.id for job in wanted]
    assert claim(store) == []


# What is claimed


def test_the_limit_applies_to_all_types_queues_and_priorities_together(store):
    for priority, type_name in product((0, 1), (SHIP, MAIL)):
        create(store, 3, type_name, queue=f"queue-{priority}", priority=priority)
    assert [len(claim(store, limit)) for limit in (5, 4, 9, 1)] == [5, 4, 3, 0]


def test_jobs_of_paused_queues_are_not_claimed(store):
    ids = {queue: create(store, queue=queue)[0] for queue in ("a", "b")}
    store.queues.pause(["a"])
    assert store.jobs.next_due({SHIP: LEASE_SECONDS}, queues=["a"]) is None
    assert claim(store, queues=["a"]) == []
    assert [job.id for job in claim(store)] == [ids["b"]]
    store.queues.resume(["a"])
    assert [job.id for job in claim(store)] == [ids["a"]]


def test_an_empty_claim_returns_nothing(store):
    create(store)
    assert [claim(store, 0), claim(store, -1), claim(store, types=[])] == [[], [], []]


@pytest.mark.parametrize("name", ["quo'te", 'dou"ble', "per%cent %s", "back\\slash", "schlüssel-鍵-🔑", "null", "a,b"])
def test_names_of_types_and_queues_are_taken_literally(store, name):
    create(store)
    (named,) = create(store, 1, name, queue=name)
    [job] = store.jobs.claim(WORKER, 10, {name: 60}, [name])
    assert (job.id, job.type_name, job.queue) == (named, name, name)


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
    changed, end = changes(before), database_now()
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


@with_locks
def test_a_claim_in_an_old_transaction_finds_what_became_due_meanwhile(store):
    with transaction.atomic():
        create(store, delay_seconds=0.3)
        let_time_pass(0.4)
        assert len(claim(store)) == 1


def let_time_pass(seconds):
    """Wait inside of the open transaction, by the database's clock."""
    until = database_now() + timedelta(seconds=seconds)
    while database_now() < until:
        pass


# When the next job is due


@pytest.mark.parametrize(
    ("seconds", "options"),
    [
        (100, {"excluded": ["c"]}),
        (600, {"excluded": ["b", "c"]}),
        (-300, {"excluded": ["a", "b"]}),
        (600, {"queues": ["a", "unknown"]}),
        (100 * 365 * 86_400, {"queues": ["z"]}),
        (None, {"queues": ["unknown"]}),
    ],
)
def test_the_earliest_job_of_the_given_types_and_queues_is_the_next(store, seconds, options):
    create(store, 1, "shop.other")
    due = {"a": (600, 900), "b": (100,), "c": (-300,), "z": (100 * 365 * 86_400,)}
    for queue, delays in due.items():
        for delay in delays:
            (job_id,) = create(store, 1, MAIL if queue == "b" else SHIP, queue=queue, priority=-delay % 7)
            Job.objects.filter(pk=job_id).update(run_at=database_now() + timedelta(seconds=delay))
    found = store.jobs.next_due({SHIP: 60.0, MAIL: 60.0}, **options)
    assert found == seconds or seconds - SLACK_SECONDS < found <= seconds + ROUNDING_SECONDS


def test_the_next_due_time_counts_from_now_and_not_from_the_start_of_the_transaction(store):
    create(store, delay_seconds=5)
    first = store.jobs.next_due({SHIP: 60.0})
    let_time_pass(0.06)
    assert first - store.jobs.next_due({SHIP: 60.0}) >= 0.05


# Concurrent claims


@committing
@pytest.mark.parametrize("roll_back", [False, True])
def test_a_claim_during_an_uncommitted_one_takes_other_jobs(store, roll_back):
    created = create(store, 10)
    first = holding(lambda store: claim(store, 5))
    second = waiting(lambda store: claim(store, 5, "worker-2"))
    first.go_on(roll_back=roll_back)
    undone = first.result() if roll_back else []
    claimed = first.result() + second.result() + claim(store, worker="worker-2")
    assert sorted(job.id for job in claimed if job not in undone) == created
    assert len(second.result()) == 5
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}


@with_locks
def test_a_locked_job_is_skipped_and_others_are_claimed(store):
    locked = create(store, 2, SHIP, priority=5)
    free = create(store, 2)
    holding(lambda store: [store.attempts.lock(job_id) for job_id in locked])
    assert [job.id for job in elsewhere(lambda store: claim(store, 2))] == free
    assert elsewhere(lambda store: claim(store)) == []


@with_locks
def test_a_claim_does_not_wait_for_a_job_that_is_being_deleted(store):
    deleted, free = create(store, 2)
    other = holding(lambda store: Job.objects.filter(pk=deleted).delete())
    assert [job.id for job in claim(store)] == [free]
    other.result()
    assert claim(store) == []
