"""Claims and due dates without some queues."""

from collections.abc import Collection

import pytest

from django_jobchains.store import Store, get_store
from tests.store.jobs import MAIL, SHIP, WORKER, create

pytestmark = pytest.mark.django_db

LEASES = {SHIP: 60.0, MAIL: 60.0}


@pytest.fixture
def store(db: None) -> Store:
    store = get_store()
    for queue in ("a", "b", "c"):
        create(store, 2, SHIP, queue=queue)
        create(store, 1, MAIL, queue=queue, priority=5)
    return store


def claimed(store: Store, limit: int, queues: Collection[str] | None, excluded: Collection[str]) -> list[str]:
    return sorted(job.queue for job in store.claim(WORKER, limit, LEASES, queues, excluded))


def test_a_claim_leaves_the_excluded_queues_alone(store: Store) -> None:
    assert claimed(store, 100, None, ["a", "c"]) == ["b", "b", "b"]
    assert claimed(store, 100, None, ["a"]) == ["c", "c", "c"]
    assert claimed(store, 100, None, ()) == ["a", "a", "a"]


def test_what_is_excluded_is_so_among_the_queues_served(store: Store) -> None:
    assert claimed(store, 100, ["a", "b"], ["b", "c"]) == ["a", "a", "a"]
    assert claimed(store, 100, ["b"], ["b"]) == []


@pytest.mark.parametrize("name", ["it's", 'a "b"', "a,b", "%s", "ü✓"])
def test_any_name_can_be_excluded(store: Store, name: str) -> None:
    create(store, 2, queue=name)
    assert name not in claimed(store, 100, None, [name])
    assert claimed(store, 100, None, ["x"]) == [name, name]


def test_the_next_due_date_is_that_of_a_job_that_may_be_claimed(store: Store) -> None:
    create(store, queue="later", delay_seconds=100)
    assert store.next_due(LEASES, None, ["a", "b", "c", "later"]) is None
    seconds = store.next_due(LEASES, None, ["a", "b", "c"])
    assert seconds is not None
    assert 90 < seconds <= 101
    seconds = store.next_due(LEASES, ["a", "later"], ["later"])
    assert seconds is not None
    assert seconds <= 1


def test_a_claim_leaves_paused_queues_alone(store: Store) -> None:
    store.pause_queues(["a", "c"])
    assert claimed(store, 100, None, ()) == ["b", "b", "b"]
    assert claimed(store, 100, ["a"], ()) == []
    assert claimed(store, 100, ["a", "c"], ["c"]) == []
    store.resume_queues(["a"])
    assert claimed(store, 100, None, ["a"]) == []
    assert claimed(store, 100, ["a", "c"], ()) == ["a", "a", "a"]


def test_a_limit_is_no_pause(store: Store) -> None:
    store.limit_queue("a", 1)
    assert claimed(store, 100, ["a"], ()) == ["a", "a", "a"]


def test_a_job_of_a_paused_queue_is_not_due(store: Store) -> None:
    store.pause_queues(["a", "b", "c"])
    assert store.next_due(LEASES) is None
    assert store.next_due(LEASES, ["a"]) is None
    store.resume_queues(["c"])
    assert store.next_due(LEASES, ["a", "b"]) is None
    assert store.next_due(LEASES) is not None
