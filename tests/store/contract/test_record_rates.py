"""Rates of records: they start no faster than allowed, alone or together with the jobs of a group."""

import random
import time
from datetime import timedelta
from uuid import UUID

import pytest
from django.db import transaction
from django.utils import timezone

from django_jobchains.models import RateState
from django_jobchains.processors import Concurrency, Rate
from django_jobchains.store.limits import BEFORE_ALL_KEYS, LimitedTypes, Rotation
from django_jobchains.store.rates import StartRate
from django_jobchains.store.record_limits import RecordLimits, RecordRotation
from tests.records.models import Export, Repository, Upload
from tests.store.conftest import with_locks
from tests.store.contract.records import add, add_keys
from tests.support.connections import REPEATABLE_READ, SERIALIZABLE, Actor, elsewhere
from tests.support.jobs import LEASE_SECONDS, SHIP, WORKER, create

pytestmark = pytest.mark.django_db

#: The seconds between two starts: much longer than a test takes.
INTERVAL = 1_000


def rate(burst=1, key="size", **options):
    return Rate(1, INTERVAL, burst=burst, key=key, **options)


def advance(store, intervals=1.0):
    store.db.ahead_seconds += INTERVAL * intervals


def dequeued(records, limit=10):
    """Dequeue once, and return the records that started."""
    return records.store.record_limits.dequeue(
        records.table, records.limits, records.rotation, records.request(limit), joins_transaction=True
    )


def refund(store, found):
    store.rates.refund([each.charge for each in found])


def waiting_seconds(records):
    start = records.rotation.next_start_at
    return None if start is None else start - time.monotonic()


@pytest.mark.parametrize("key", ["size", None])
def test_starts_are_an_interval_apart(limited, store, key):
    add_keys(k1=3)
    uploads = limited(rate=rate(key=key))
    assert uploads.dequeue() == {(1 if key else "processing"): 1}
    assert uploads.dequeue() == {}
    assert INTERVAL - 60 < waiting_seconds(uploads) <= INTERVAL
    advance(store, 0.5)
    assert uploads.dequeue() == {}
    assert INTERVAL / 2 - 60 < waiting_seconds(uploads) <= INTERVAL / 2
    advance(store, 0.5)
    assert uploads.dequeue().total() == 1
    first, second = Upload.objects.filter(state="processing").order_by("started_at")
    assert second.started_at - first.started_at >= timedelta(seconds=INTERVAL)


@pytest.mark.parametrize("key", ["size", None])
def test_a_burst_starts_at_once_after_a_pause(limited, store, key):
    add_keys(k1=20)
    uploads = limited(rate=rate(3, key))
    assert uploads.dequeue(calls=3).total() == 3
    advance(store)
    assert uploads.dequeue(calls=3).total() == 1
    advance(store, 50)
    assert uploads.dequeue(calls=3).total() == 3


def test_each_key_has_its_own_rate(limited):
    """A key that may not start delays no other."""
    add_keys(k1=3)
    uploads = limited(rate=rate())
    assert uploads.dequeue() == {1: 1}
    add_keys(k2=2, k3=2)
    add(2, size=0)
    assert uploads.dequeue() == {0: 1, 2: 1, 3: 1}
    assert uploads.dequeue() == {}


def test_records_without_a_key_share_a_rate(limited):
    add(3, repository=None)
    add(1, repository=Repository.objects.create(name="a"))
    uploads = limited(rate=rate(key="repository"))
    assert uploads.dequeue().total() == 2
    assert uploads.dequeue() == {}
    assert RateState.objects.filter(key="records.upload").exists()


def test_both_limits_hold(limited, store):
    add_keys(k1=9, k2=9)
    uploads = limited(concurrency=Concurrency(2, key="size"), rate=rate(3, None))
    assert uploads.dequeue(calls=4).total() == 3
    Upload.objects.filter(state="processing").update(state="completed")
    advance(store, 9)
    assert uploads.dequeue(calls=4) in ({1: 2, 2: 1}, {1: 1, 2: 2})
    advance(store, 9)
    assert uploads.dequeue(calls=4).total() == 1
    assert waiting_seconds(uploads) is None


def test_a_key_without_a_free_place_is_not_waited_for(limited, store):
    add_keys(k1=9)
    uploads = limited(concurrency=Concurrency(1, key="size"), rate=rate())
    assert uploads.dequeue() == {1: 1}
    assert uploads.dequeue() == {}
    assert waiting_seconds(uploads) is None


@pytest.mark.parametrize("key", ["size", None])
def test_without_ready_records_no_start_is_waited_for(limited, store, key):
    add_keys(k1=1)
    add(1, size=1, process_after=store.stats.time_ago(-3_600))
    uploads = limited(rate=rate(key=key))
    assert uploads.dequeue().total() == 1
    uploads.dequeue()
    assert waiting_seconds(uploads) is None


def test_the_next_start_is_that_of_the_first_key(limited, store):
    add_keys(k1=2)
    uploads = limited(rate=rate())
    uploads.dequeue()
    advance(store, 0.4)
    add_keys(k2=2)
    assert uploads.dequeue() == {2: 1}
    uploads.dequeue()
    assert 0.6 * INTERVAL - 60 < waiting_seconds(uploads) <= 0.6 * INTERVAL


def test_records_that_do_not_start_cost_nothing(limited):
    add_keys(k1=1)
    add(1, size=1, cancel=True)
    uploads = limited(rate=rate(5))
    assert uploads.dequeue(calls=3).total() == 2
    add_keys(k1=9)
    assert uploads.dequeue(calls=3).total() == 4


def test_a_start_is_refunded_once(limited, store):
    add_keys(k1=9)
    uploads = limited(rate=rate(2))
    found = dequeued(uploads, 2)
    assert len(found) == 2
    refund(store, found)
    refund(store, found)
    assert uploads.dequeue(calls=3).total() == 2


def test_a_start_is_not_refunded_after_a_later_one(limited, store):
    add_keys(k1=9)
    uploads = limited(rate=rate())
    early = dequeued(uploads)
    advance(store, 1.5)
    assert uploads.dequeue().total() == 1
    refund(store, early)
    assert uploads.dequeue() == {}


@pytest.mark.parametrize("seed", range(4))
def test_no_window_has_more_starts_than_allowed(limited, store, seed):
    """By the times in the records, whatever comes in between."""
    rng = random.Random(seed)
    burst, per, key = rng.choice([1, 2, 5]), rng.choice([1, 4]), rng.choice(["size", None])
    add_keys(k1=40, k2=40)
    uploads = limited(rate=Rate(per, per * INTERVAL, burst=burst, key=key))
    started = {1: [], 2: []}
    for _ in range(40):
        advance(store, rng.choice([0, 0.3, 1, 2.2, burst]))
        found = dequeued(uploads, rng.choice([1, 2, 20]))
        back = [each for each in found if rng.random() < 0.3]
        refund(store, back)
        for each in found:
            upload = Upload.objects.get(pk=each.id)
            if each not in back:
                started[upload.size if key else 1].append(upload.started_at)
    most = per + burst - 1
    assert len(started[1]) > 8
    for times in started.values():
        ordered = sorted(times)
        for first, last in zip(ordered, ordered[most:], strict=False):
            assert last - first >= timedelta(seconds=per * INTERVAL)


@pytest.mark.parametrize(
    ("key", "value"),
    [("name", "it's {1} %s"), ("id", UUID("00112233-4455-6677-8899-aabbccddeeff"))],
)
def test_jobs_and_records_of_a_group_share_a_rate(limited, store, key, value):
    """Both count by the text of the key, however the database stores it."""
    Export.objects.create(**{"name": "a", key: value})
    exports = limited(Export, rate=rate(key=key, group="gateway"))
    create(store, 1, SHIP, limit_key=ord("a"), rate_key=f"gateway␟{value}")
    types = LimitedTypes({SHIP: LEASE_SECONDS}, {SHIP: None}, {SHIP: StartRate(INTERVAL * 1_000_000, 1)})
    assert len(store.limits.claim(WORKER, 10, types, Rotation(BEFORE_ALL_KEYS))) == 1
    assert exports.dequeue() == {}
    advance(store)
    assert exports.dequeue().total() == 1
    create(store, 1, SHIP, limit_key=ord("a"), rate_key=f"gateway␟{value}")
    assert store.limits.claim(WORKER, 10, types, Rotation(BEFORE_ALL_KEYS)) == []


def test_very_long_keys_may_share_a_bucket(limited, monkeypatch):
    monkeypatch.setattr("django_jobchains.store.record_limits.KEY_LENGTH", 9)
    for end in "ab":
        Export.objects.create(name="x" * 9 + end)
    exports = limited(Export, rate=rate(key="name"))
    assert exports.dequeue(calls=2).total() == 1


def test_a_paused_queue_charges_nothing(limited, store):
    add_keys(k1=1)
    uploads = limited(rate=rate())
    store.queues.pause([uploads.kind.queue])
    assert uploads.dequeue() == {}
    assert not RateState.objects.exists()


@with_locks
@pytest.mark.parametrize("key", ["size", None])
def test_one_dequeue_at_a_time_decides_about_a_bucket(limited, key):
    """In both orders: the second one begins while the first is deciding, and when it has committed."""
    add_keys(k1=5)
    uploads, other = limited(rate=rate(key=key)), RecordRotation()
    with transaction.atomic():
        assert uploads.dequeue().total() == 1
        assert elsewhere(lambda store: uploads.dequeue(store=store, rotation=other)) == {}
        assert other.met_lock
    assert elsewhere(lambda store: uploads.dequeue(store=store, rotation=other)) == {}
    assert not other.met_lock


@with_locks
def test_a_dequeue_and_a_claim_do_not_decide_about_a_bucket_together(limited, store):
    Export.objects.create(name="a")
    exports = limited(Export, rate=rate(key="name", group="gateway"))
    create(store, 1, SHIP, limit_key=ord("a"), rate_key="gateway␟a")
    types = LimitedTypes({SHIP: LEASE_SECONDS}, {SHIP: None}, {SHIP: StartRate(INTERVAL * 1_000_000, 1)})
    with transaction.atomic():
        assert len(store.limits.lock_groups(10, types, Rotation(BEFORE_ALL_KEYS))) == 1
        other = RecordRotation()
        assert elsewhere(lambda store: exports.dequeue(store=store, rotation=other)) == {}
        assert other.met_lock


@with_locks
@pytest.mark.parametrize("level", [REPEATABLE_READ, SERIALIZABLE])
def test_a_dequeue_reads_what_was_charged_before_it_had_the_lock(limited, level, monkeypatch):
    """Between its statements, a start is counted, as if another dequeue had committed just before the first."""
    add_keys(k1=5)
    uploads, lock_keys = limited(rate=rate()), RecordLimits.lock_keys

    def lock_and_charge(part, *args):
        keys = lock_keys(part, *args)
        elsewhere(lambda store: store.rates.charge([("records.upload␟1", uploads.limits.rate.rate)], timezone.now()))
        return keys

    monkeypatch.setattr(RecordLimits, "lock_keys", lock_and_charge)
    actor = Actor(lambda store: uploads.dequeue(store=store, joins_transaction=False), level=level)
    assert actor.start().result() == {}


@with_locks
@pytest.mark.parametrize("key", ["size", None])
def test_a_locked_row_delays_only_its_bucket(limited, store, key):
    add_keys(k1=5, k2=5)
    uploads = limited(rate=rate(key=key))
    uploads.dequeue()
    advance(store)
    with transaction.atomic():
        RateState.objects.select_for_update().get(key="records.upload␟1" if key else "records.upload")
        other = RecordRotation()
        found = elsewhere(lambda store: uploads.dequeue(store=store, rotation=other))
        assert found == ({2: 1} if key else {})
        assert other.met_lock
    assert uploads.dequeue().total() == 1
