"""Limited records: dequeues never exceed a limit, and go round the keys."""

import pytest
from django.db import transaction

from django_jobchains.processors import Concurrency
from django_jobchains.store.record_limits import RecordLimits, RecordRotation
from django_jobchains.store.records import DequeueInTransaction
from tests.records.models import Export, Repository, Upload
from tests.store.conftest import with_locks
from tests.store.contract.records import FLAT, HOUR, add, add_keys
from tests.support.connections import REPEATABLE_READ, SERIALIZABLE, Actor, elsewhere, holding

pytestmark = pytest.mark.django_db

KEYED = Concurrency(2, key="size")


def test_no_more_start_than_the_limit_of_each_key(limited):
    add_keys(k1=5, k2=1, k3=3)
    uploads = limited(concurrency=KEYED)
    assert uploads.dequeue() == {1: 2, 2: 1, 3: 2}
    assert uploads.dequeue() == {}


def test_a_limit_without_a_key_holds_for_all_records(limited):
    add_keys(k1=5, k2=5)
    uploads = limited(concurrency=Concurrency(3))
    assert uploads.dequeue(calls=3).total() == 3
    Upload.objects.filter(state="processing").update(state="completed")
    assert uploads.dequeue(2, calls=3).total() == 3


def test_a_limit_of_all_records_goes_round_the_keys_of_fair(limited):
    add_keys(k1=20, k2=2, k3=2)
    uploads = limited(concurrency=Concurrency(1), fair="size")
    found = []
    for _ in range(7):
        found += uploads.dequeue()
        Upload.objects.filter(state="processing").update(state="completed")
    assert found == [1, 2, 3, 1, 2, 3, 1]


def test_fair_alone_limits_nothing(limited):
    add_keys(k1=20, k2=1)
    uploads = limited(fair="size")
    assert uploads.dequeue(4) == {1: 2, 2: 1}
    assert uploads.dequeue(20, calls=3) == {1: 18}


def test_an_ended_record_frees_its_place(limited):
    add_keys(k1=5)
    uploads = limited(concurrency=KEYED)
    uploads.dequeue()
    Upload.objects.filter(state="processing").update(state="errored")
    assert uploads.dequeue() == {1: 2}


def test_a_stalled_record_counts_until_it_is_reset(limited, store):
    add_keys(k1=5)
    uploads = limited(concurrency=KEYED)
    uploads.dequeue()
    Upload.objects.filter(state="processing").update(last_heartbeat_at=store.stats.time_ago(3_600))
    assert uploads.dequeue() == {}
    table, operations = uploads.table, store.record_operations
    keys = operations.stalled(table, 10, stalled_seconds=30)
    assert len(operations.reset(table, keys, stalled_seconds=30, max_resets=0, backoff=FLAT, message="gone")) == 2
    assert uploads.dequeue() == {1: 2}


def test_dequeues_go_round_the_keys(limited):
    add_keys(k1=3, k2=3, k3=3)
    uploads = limited(concurrency=Concurrency(9, key="size"))
    found = [key for _ in range(7) for key in uploads.dequeue(1)]
    assert found == [1, 2, 3, 1, 2, 3, 1]


def test_records_without_a_key_share_a_limit_and_take_turns(limited):
    repositories = [Repository.objects.create(name=name) for name in "ab"]
    for repository in (None, *repositories):
        add(3, repository=repository)
    first, second = [repository.pk for repository in repositories]
    uploads = limited(concurrency=Concurrency(1, key="repository"))
    assert uploads.dequeue() == {first: 1, second: 1, None: 1}
    assert uploads.dequeue() == {}
    Upload.objects.filter(state="processing").update(state="completed")
    found = []
    for _ in range(6):
        found += uploads.dequeue(1)
        Upload.objects.filter(state="processing").update(state="completed")
    assert found == [first, second, None, first, second, None]


@pytest.mark.parametrize("key", ["name", "id"])
def test_keys_may_be_texts_and_uuids(limited, key):
    for name in ("it's {1} %s", "b"):
        add(2, Export, name=name)
    exports = limited(Export, concurrency=Concurrency(1, key=key))
    rounds = [exports.dequeue() for _ in range(3)]
    assert [each.total() for each in rounds] == ([2, 0, 0] if key == "name" else [4, 0, 0])
    Export.objects.filter(state="processing").update(state="queued")
    assert len({key for _ in range(4) for key in exports.dequeue(1)}) == (2 if key == "name" else 4)


def test_only_ready_records_of_the_queryset_start(limited, store):
    now = store.stats.time_ago(0)
    add_keys(k1=1, k2=1, k3=1)
    add(1, size=4, process_after=now + HOUR)
    add(1, size=5, process_after=now - HOUR)
    add(1, size=6, state="errored", finished_at=now)
    add(1, size=7, state="errored", finished_at=now - HOUR)
    add(1, size=8, state="uploading")
    uploads = limited(concurrency=KEYED, queryset=Upload.objects.exclude(size=2), retry_after=60)
    assert uploads.dequeue() == {1: 1, 3: 1, 5: 1, 7: 1}


def test_errored_records_are_not_retried_unless_that_is_set(limited, store):
    add(1, size=1, state="errored", finished_at=store.stats.time_ago(3_600))
    assert limited(concurrency=KEYED).dequeue() == {}


def test_records_of_other_registrations_do_not_count(limited):
    add(3, size=1, result="other", state="processing")
    add(3, size=1)
    uploads = limited(concurrency=KEYED, queryset=Upload.objects.filter(result=""))
    assert uploads.dequeue() == {1: 2}


def test_records_of_a_key_start_in_the_order_of_the_registration(limited):
    for result in "cab":
        add(1, size=1, result=result)
    uploads = limited(concurrency=Concurrency(1, key="size"), order_by=["result"])
    uploads.dequeue()
    assert Upload.objects.get(state="processing").result == "a"


def test_a_paused_queue_starts_nothing(limited, store):
    add_keys(k1=1)
    uploads = limited(concurrency=KEYED)
    store.queues.pause([uploads.kind.queue])
    assert uploads.dequeue() == {}


def test_a_queryset_without_rows_starts_nothing(limited):
    add_keys(k1=1)
    assert limited(concurrency=KEYED, queryset=Upload.objects.none()).dequeue() == {}


@with_locks
def test_one_dequeue_at_a_time_decides_about_a_key(limited):
    """In both orders: the second one begins while the first is deciding, and when it has committed."""
    add_keys(k1=5, k2=5)
    uploads = limited(concurrency=KEYED)
    with transaction.atomic():
        keys = uploads.lock_keys(limit=1)
        assert [turn.key for turn in keys] == [1]
        # Another dequeue finds the key locked, does not wait, and takes what it may of other keys.
        other = RecordRotation()
        assert elsewhere(lambda store: uploads.dequeue(store=store, rotation=other)) == {2: 2}
        assert other.met_lock
        assert len(uploads.start_of(keys)) == 2
        assert elsewhere(lambda store: uploads.dequeue(store=store, rotation=other)) == {}
    assert elsewhere(lambda store: uploads.dequeue(store=store, rotation=other)) == {}
    assert not other.met_lock


@with_locks
def test_a_dequeue_counts_what_was_committed_after_it_found_its_keys(limited):
    add_keys(k1=5)
    uploads = limited(concurrency=KEYED)
    with transaction.atomic():
        keys = uploads.lock_keys()
        # What is in process grows only under the lock; this stands for a dequeue that committed just before.
        elsewhere(lambda _: Upload.objects.filter(pk__in=Upload.objects.values("pk")[:1]).update(state="processing"))
        assert len(uploads.start_of(keys)) == 1


@with_locks
def test_one_dequeue_at_a_time_decides_about_all_records(limited):
    add_keys(k1=9)
    uploads = limited(concurrency=Concurrency(2))
    first = holding(lambda store: uploads.dequeue(store=store, rotation=RecordRotation()))
    other = RecordRotation()
    assert elsewhere(lambda store: uploads.dequeue(store=store, rotation=other)) == {}
    assert other.met_lock
    assert first.result().total() == 2
    assert elsewhere(lambda store: uploads.dequeue(store=store, rotation=other)) == {}


@with_locks
@pytest.mark.parametrize("level", [REPEATABLE_READ, SERIALIZABLE])
def test_a_dequeue_counts_at_every_isolation_level_of_the_project(limited, level, monkeypatch):
    """Between its statements, a record starts, as if another dequeue had committed just before the first."""
    add_keys(k1=5)
    uploads, lock_keys = limited(concurrency=KEYED), RecordLimits.lock_keys

    def lock_and_start(part, *args):
        keys = lock_keys(part, *args)
        elsewhere(lambda _: Upload.objects.filter(pk__in=Upload.objects.values("pk")[:1]).update(state="processing"))
        return keys

    monkeypatch.setattr(RecordLimits, "lock_keys", lock_and_start)
    actor = Actor(lambda store: uploads.dequeue(store=store, joins_transaction=False), level=level)
    assert actor.start().result() == {1: 1}


def test_a_dequeue_inside_a_transaction_is_refused(limited):
    add_keys(k1=1)
    uploads = limited(concurrency=KEYED)
    with transaction.atomic(), pytest.raises(DequeueInTransaction):
        uploads.dequeue(joins_transaction=False)
