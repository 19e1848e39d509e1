"""Limited types: claims never exceed a limit, and go round the keys."""

from datetime import timedelta

import pytest
from django.db import transaction

from django_jobchains import queues
from django_jobchains.models import Job
from django_jobchains.store.limits import (
    AFTER_ALL_KEYS,
    BEFORE_ALL_KEYS,
    MAX_COUNTED_ONE_BY_ONE,
    LimitedTypes,
    Rotation,
)
from tests.store.conftest import with_locks
from tests.support.connections import (
    READ_COMMITTED,
    REPEATABLE_READ,
    SERIALIZABLE,
    Actor,
    elsewhere,
)
from tests.support.jobs import (
    AT_ONCE,
    LEASE_SECONDS,
    MAIL,
    MAX_CRASHES,
    SHIP,
    WORKER,
    alter,
    create,
    database_now,
    expire,
    running,
)

pytestmark = pytest.mark.django_db

HOUR = timedelta(hours=1)


def types(ship=2, **others):
    limits = {SHIP: ship, **others}
    return LimitedTypes(dict.fromkeys(limits, LEASE_SECONDS), limits)


def add(store, key, count=1, type_name=SHIP, counted="", **changes):
    """Create jobs of a key, which sorts as it is."""
    return create(
        store, count, type_name, limit_key=ord(key), concurrency_key=f"{counted or type_name} {key}", **changes
    )


def claim(store, limit=100, served=None, rotation=None, worker=WORKER, **options):
    return store.limits.claim(worker, limit, served or types(), rotation or Rotation(BEFORE_ALL_KEYS), **options)


def keys(jobs):
    stored = dict(Job.objects.filter(pk__in=[job.id for job in jobs]).values_list("id", "limit_key"))
    return sorted(chr(stored[job.id]) for job in jobs)


def test_a_claim_takes_no_more_than_the_limit_of_each_key(store):
    add(store, "a", 5)
    add(store, "b", 1)
    add(store, "c", 3)
    assert keys(claim(store)) == ["a", "a", "b", "c", "c"]
    assert claim(store) == []


def test_an_ended_job_frees_its_place(store):
    add(store, "a", 5)
    first, _ = claim(store)
    store.attempts.hand_back([first.key])
    assert len(claim(store)) == 1


def test_a_job_counts_until_it_is_reaped(store):
    add(store, "a", 3)
    jobs = claim(store)
    expire(*jobs)
    assert claim(store) == []
    store.leases.reap(10, AT_ONCE, MAX_CRASHES)
    assert len(claim(store)) == 2


def test_types_of_a_group_share_its_limit(store):
    add(store, "a", 5, counted="gateway")
    add(store, "a", 5, MAIL, counted="gateway")
    served = types(3, **{MAIL: 3})
    first = claim(store, served=served)
    assert len(first) == 3
    assert {job.type_name for job in first} == {SHIP, MAIL}
    assert claim(store, served=types(3)) == []


@pytest.mark.parametrize("limit", [3, MAX_COUNTED_ONE_BY_ONE + 1])
def test_jobs_that_take_turns_are_counted_by_one_key(store, limit):
    for turn in "abc":
        create(store, limit, limit_key=ord(turn), concurrency_key="region")
    create(store, limit_key=ord("d"), concurrency_key="another region")
    served = types(limit)
    first, *others = claim(store, served=served)
    assert len(others) == limit
    assert claim(store, served=served) == []
    assert store.limits.next_due(served) is None
    store.attempts.hand_back([first.key])
    assert len(claim(store, served=served)) == 1


def test_a_type_without_a_limit_takes_turns_only(store):
    create(store, 5, limit_key=ord("a"))
    create(store, 5, limit_key=ord("b"))
    assert keys(claim(store, 4, types(None))) == ["a", "a", "b", "b"]
    assert len(claim(store, 100, types(None))) == 6


def test_jobs_that_are_not_counted_are_not_claimed_under_a_limit(store):
    create(store, limit_key=ord("a"))
    assert claim(store) == []
    assert store.limits.next_due(types()) is None


def test_claims_go_round_the_keys(store):
    for key in "abcde":
        add(store, key, 2)
    rotation = Rotation(BEFORE_ALL_KEYS)
    found = [keys(claim(store, 2, types(2), rotation)) for _ in range(5)]
    assert found == [["a", "b"], ["c", "d"], ["a", "e"], ["b", "c"], ["d", "e"]]


def test_a_claim_begins_after_the_start_of_its_rotation(store):
    for key in "abc":
        add(store, key)
    assert keys(claim(store, 1, rotation=Rotation(ord("a")))) == ["b"]
    assert keys(claim(store, 1, rotation=Rotation(ord("c")))) == ["a"]


@pytest.mark.parametrize("start", [BEFORE_ALL_KEYS, 0, 1, 3, 6, AFTER_ALL_KEYS - 1])
def test_free_keys_are_found_between_saturated_ones(store, start):
    """Each of eight keys is saturated or free, with and without pending jobs, at both ends and beside each other."""
    stored = {0: "saturated", 1: "free", 2: "saturated", 3: "saturated", 5: "running", 6: "free"}
    stored |= {7: "free", AFTER_ALL_KEYS - 1: "saturated"}
    keys_of = {key: {"limit_key": key, "concurrency_key": f"key {key}"} for key in stored}
    for key in (key for key, state in stored.items() if state != "free"):
        running(store, **keys_of[key])
    for key in (key for key, state in stored.items() if state != "running"):
        create(store, 1, priority=0, **keys_of[key])
        create(store, 1, priority=5, **keys_of[key])
    groups = store.limits.lock_groups(100, types(1), Rotation(start))
    free = [key for key, state in stored.items() if state == "free"]
    turns = [key for key in free if key > start] + [key for key in free if key <= start]
    # Jobs of one key with different priorities are different groups.
    assert [(group.limit_key, group.rank) for group in groups] == [(key, rank) for key in turns for rank in (-5, 0)]


def test_turns_stay_with_keys_that_were_not_served(store):
    """One place, which all keys share: each claim serves the next of them."""
    for key in "abc":
        create(store, 2, limit_key=ord(key), concurrency_key="all")
    rotation, found = Rotation(BEFORE_ALL_KEYS), []
    for _ in range(6):
        [job] = claim(store, 10, types(1), rotation)
        found += keys([job])
        alter([job], status="completed")
    assert found == ["a", "b", "c", "a", "b", "c"]


def test_a_type_whose_shared_key_has_no_free_place_is_left_out(store):
    for key in "abc":
        create(store, 2, limit_key=ord(key), concurrency_key="all")
    add(store, "a", 2, MAIL)
    served = types(2, **{MAIL: 2})._replace(shared_keys={SHIP: "all"})
    first = claim(store, 3, served)
    assert sorted(job.type_name for job in first) == [MAIL, SHIP, SHIP]
    assert [job.type_name for job in claim(store, served=served)] == [MAIL]
    assert store.limits.next_due(served) is None
    alter([job for job in first if job.type_name == SHIP][:1], status="completed")
    assert [job.type_name for job in claim(store, served=served)] == [SHIP]


def test_priority_and_due_time_order_the_jobs_of_a_key(store):
    now = database_now()
    [late] = add(store, "a", run_at=now - timedelta(minutes=1))
    [early] = add(store, "a")
    alter([Job.objects.get(pk=early)], run_at=now - HOUR)
    [urgent] = add(store, "a", priority=5)
    add(store, "a", priority=9, run_at=now + HOUR)
    found = [claim(store, 1, types(9))[0].id for _ in range(3)]
    assert found == [urgent, early, late]
    assert claim(store, 1, types(9)) == []
    assert 3_500 < store.limits.next_due(types(9)) <= 3_600


def test_saturated_keys_are_not_due(store):
    add(store, "a", 3)
    claim(store)
    assert store.limits.next_due(types()) is None
    add(store, "b")
    assert store.limits.next_due(types()) <= 0


def test_only_served_queues_and_types_are_claimed(store):
    add(store, "a", queue="mail")
    add(store, "a", type_name=MAIL)
    [job] = add(store, "b", queue="default")
    assert claim(store, queues=["other"]) == []
    assert [found.id for found in claim(store, excluded=["mail"])] == [job]
    assert [found.queue for found in claim(store, queues=["mail"])] == ["mail"]
    assert claim(store) == []


def test_jobs_of_paused_queues_are_not_claimed(store):
    add(store, "a")
    queues.pause("default")
    assert claim(store) == []
    assert store.limits.next_due(types()) is None
    queues.resume("default")
    assert len(claim(store)) == 1


def test_expired_jobs_are_asked_to_stop(store):
    [job] = add(store, "a", expires_at=database_now() - HOUR)
    expired = []
    assert claim(store, expired=expired) == []
    assert [late.id for late in expired] == [job]


def test_unlimited_claims_do_not_change(store):
    """A type whose limit was removed is claimed in the usual way."""
    add(store, "a")
    assert len(store.jobs.claim(WORKER, 10, {SHIP: LEASE_SECONDS})) == 1


def test_jobs_without_keys_get_them(store):
    [old, _] = create(store, 2)
    create(store, 1, MAIL)
    add(store, "a")
    found, _ = store.limits.without_keys({SHIP: (True, False)}, 10)
    assert {row[1] for row in found} == {SHIP}
    assert len(found) == 2
    assert store.limits.set_keys([(job_id, 107, "shop.ship k", None) for job_id, *_ in found]) == [SHIP, SHIP]
    assert store.limits.without_keys({SHIP: (True, False)}, 10) == ([], None)
    assert old in {job.id for job in claim(store)}


def test_jobs_without_keys_are_read_in_pages(store):
    pending = create(store, 3)
    blocked = [create(store, 1, blockers=(chain_id,))[0] for chain_id in pending]
    create(store, 1, MAIL)
    first, after = store.limits.without_keys({SHIP: (False, False)}, 4)
    rest, end = store.limits.without_keys({SHIP: (False, False)}, 4, after)
    assert (len(first), len(rest), end) == (4, 2, None)
    assert [job_id for job_id, *_ in first + rest] == sorted(pending + blocked)


@with_locks
def test_one_claim_at_a_time_decides_about_a_key(store):
    """In both orders: the second claim begins while the first is deciding, and when it has committed."""
    add(store, "a", 5)
    add(store, "b", 5)
    with transaction.atomic():
        groups = store.limits.lock_groups(1, types(), Rotation(BEFORE_ALL_KEYS))
        assert [group.limit_key for group in groups] == [ord("a")]
        # Another claim finds the key locked, does not wait, and takes what it may of other keys.
        rotation = Rotation(BEFORE_ALL_KEYS)
        assert elsewhere(lambda other: keys(claim(other, worker="other", rotation=rotation))) == ["b", "b"]
        assert rotation.met_locks
        rows = store.limits.claim_of(groups, WORKER, 10, types(), Rotation(BEFORE_ALL_KEYS))
        assert len(rows) == 2
        assert elsewhere(lambda other: claim(other, worker="other")) == []
    assert elsewhere(lambda other: claim(other, worker="other")) == []


@with_locks
def test_a_claim_counts_what_was_committed_after_it_found_its_groups(store):
    add(store, "a", 5)
    with transaction.atomic():
        groups = store.limits.lock_groups(10, types(), Rotation(BEFORE_ALL_KEYS))
        # What is running changes only under the lock; this stands for a claim that committed just before.
        elsewhere(lambda _: Job.objects.filter(pk__in=Job.objects.values("pk")[:1]).update(status="running"))
        assert len(store.limits.claim_of(groups, WORKER, 10, types(), Rotation(BEFORE_ALL_KEYS))) == 1


@with_locks
@pytest.mark.parametrize(("level", "last_statement"), [(READ_COMMITTED, 2), (REPEATABLE_READ, 3), (SERIALIZABLE, 3)])
def test_a_claim_counts_at_every_isolation_level_of_the_project(store, level, last_statement):
    """Between its two statements, a job starts, as if another claim had committed just before the first."""
    add(store, "a", 5)
    actor = Actor(lambda other: len(claim(other)), level=level, stops_before=last_statement).start().until_stopped()
    [job] = Job.objects.all()[:1]
    alter([job], status="running")
    assert actor.result() == 1
