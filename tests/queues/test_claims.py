"""Claims and due times with excluded, limited and paused queues, beyond the store's contract."""

from collections.abc import Collection

import pytest

from django_jobchains.store import Store, get_store
from tests.support.jobs import MAIL, SHIP, WORKER, create

pytestmark = pytest.mark.django_db

LEASES = {SHIP: 60.0, MAIL: 60.0}


@pytest.fixture
def store(db):
    store = get_store()
    for queue in ("a", "b", "c"):
        create(store, 2, SHIP, queue=queue)
        create(store, 1, MAIL, queue=queue, priority=5)
    return store


def claimed_queues(store: Store, queues: Collection[str] | None, excluded: Collection[str]) -> list[str]:
    return sorted(job.queue for job in store.jobs.claim(WORKER, 100, LEASES, queues, excluded))


@pytest.mark.parametrize("name", ["it's", 'a "b"', "a,b", "%s", "ü✓"])
def test_any_queue_name_can_be_excluded(store, name):
    create(store, 2, queue=name)
    assert claimed_queues(store, None, [name, "a", "b"]) == ["c", "c", "c"]
    assert claimed_queues(store, [name], ()) == [name, name]


def test_next_due_time_ignores_excluded_queues(store):
    create(store, queue="later", delay_seconds=100)
    assert store.jobs.next_due(LEASES, None, ["a", "b", "c", "later"]) is None
    assert 90 < (store.jobs.next_due(LEASES, None, ["a", "b", "c"]) or 0) <= 101


def test_paused_queues_are_neither_claimed_nor_due(store):
    store.queues.pause(["a", "b", "c"])
    assert claimed_queues(store, None, ()) == claimed_queues(store, ["a", "c"], ["c"]) == []
    assert store.jobs.next_due(LEASES) is None
    store.queues.resume(["c"])
    assert store.jobs.next_due(LEASES, ["a", "b"]) is None
    assert store.jobs.next_due(LEASES) is not None
    assert claimed_queues(store, None, ["a"]) == ["c", "c", "c"]


def test_limited_queue_is_claimed(store):
    store.queues.limit("a", 1)
    assert claimed_queues(store, ["a"], ()) == ["a", "a", "a"]
