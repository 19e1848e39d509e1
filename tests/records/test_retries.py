"""Every statement of the store about records is run again after a conflict with another transaction."""

import pytest

from django_jobchains.declare.policies import Backoff
from django_jobchains.store import DequeueRequest, RecordEnd, get_store
from tests.records.models import Upload
from tests.store.methods import public_methods
from tests.store.test_retries import CONFLICTS, failing

pytestmark = pytest.mark.django_db(transaction=True)


def ids_of(key):
    return f"SELECT id FROM {Upload._meta.db_table} WHERE id = %s", [key[0]]


CALLS = {
    "records.beat": lambda store, table, key: store.records.beat(table, [key]),
    "records.check": lambda store, table, key: store.records.check(table, [key]),
    "records.state_of": lambda store, table, key: store.records.state_of(table, key[0]),
    "records.end": lambda store, table, key: store.records.end(table, [RecordEnd(*key, "completed")]),
    "records.write_logs": lambda store, table, key: store.records.write_logs(table, key, lambda: [{"key": "a"}]),
    "record_operations.stalled": lambda store, table, key: store.record_operations.stalled(
        table, 10, stalled_seconds=30
    ),
    "record_operations.reset": lambda store, table, key: store.record_operations.reset(
        table, [key], stalled_seconds=30, max_resets=2, backoff=Backoff(), message="gone"
    ),
    "record_operations.cancel_flagged": lambda store, table, key: store.record_operations.cancel_flagged(table, 10),
    "record_operations.cancel": lambda store, table, key: store.record_operations.cancel(table, ids_of(key)),
    "record_operations.requeue": lambda store, table, key: store.record_operations.requeue(table, ids_of(key), None),
    "record_operations.retry": lambda store, table, key: store.record_operations.retry(table, ids_of(key)),
    "deferred.defer_records": lambda store, table, key: store.deferred.defer_records(
        table, [RecordEnd(*key, "completed")]
    ),
    "deferred.apply_records": lambda store, table, key: store.deferred.apply_records(table),
    "records.count_by_state": lambda store, table, key: store.records.count_by_state(
        table, lambda where, params, order: (f"SELECT id FROM {table.name} WHERE {where}", params), 10
    ),
}
#: The first two are part of a transaction that the caller ends; ``dequeue`` has its own test.
OTHERS = {"records.lock", "record_operations.cancel_unlocked", "records.dequeue"}
conflicts = pytest.mark.parametrize("sqlstate", CONFLICTS.values(), ids=CONFLICTS)


@pytest.fixture
def kind(processors):
    processors.records(Upload)(lambda record, run: None)
    [kind] = processors.record_types.values()
    return kind


def dequeue(store, kind):
    request = DequeueRequest(kind.select(store.using), 10, "host", kind.queue)
    return store.records.dequeue(kind.table(store.using), request)


@conflicts
def test_a_dequeue_is_run_again(kind, sqlstate):
    Upload.objects.create()
    with failing(1, sqlstate):
        assert len(dequeue(get_store(), kind)) == 1


@conflicts
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_run_again(kind, name, sqlstate):
    store = get_store()
    Upload.objects.create()
    [dequeued] = dequeue(store, kind)
    with failing(1, sqlstate):
        CALLS[name](store, kind.table(store.using), dequeued.key)


def test_every_method_about_records_is_tested_here():
    assert {name for name in public_methods() if "record" in name} == {*CALLS, *OTHERS}
