"""Every statement of the store about records is run again after a conflict with another transaction."""

import pytest

from django_jobchains.declare.policies import Backoff
from django_jobchains.store import get_store
from django_jobchains.store.record_limits import LimitedRecords, RecordRotation
from django_jobchains.store.record_tables import QuerySetSQL, RecordEnd
from django_jobchains.store.records import DequeueRequest
from tests.records.models import Upload
from tests.store.methods import public_methods
from tests.store.test_retries import CONFLICTS, failing

pytestmark = pytest.mark.django_db(transaction=True)


def ids_of(key):
    return f"SELECT id FROM {Upload._meta.db_table} WHERE id = %s", [key[0]]


def select(where, params, order):
    return QuerySetSQL(f"SELECT id FROM {Upload._meta.db_table} WHERE {where}", params, has_values=False)


REQUEST = DequeueRequest(select, 10, "host", "default")


def dequeue(store, table):
    return store.records.dequeue(table, REQUEST)


#: The calls about a table, and about one of its records.
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
    "records.count_by_state": lambda store, table, key: store.records.count_by_state(table, select, 10),
    "records.dequeue": lambda store, table, key: dequeue(store, table),
    "record_limits.dequeue": lambda store, table, key: store.record_limits.dequeue(
        table, LimitedRecords("a", 1, False, None, False, "", select), RecordRotation(), REQUEST
    ),
}
#: Parts of a transaction that the caller ends, and of a claim.
OTHERS = {
    "record_limits.lock_keys",
    "record_limits.start_of",
    "record_operations.cancel_unlocked",
    "records.lock",
    "records.selects",
}
conflicts = pytest.mark.parametrize("sqlstate", CONFLICTS.values(), ids=CONFLICTS)


@conflicts
@pytest.mark.parametrize("name", CALLS)
def test_a_call_is_run_again(kind, name, sqlstate):
    store, table = get_store(), kind.table("default")
    Upload.objects.create()
    [dequeued] = dequeue(store, table)
    Upload.objects.create()
    with failing(1, sqlstate):
        CALLS[name](store, table, dequeued.key)
    if name == "records.dequeue":
        assert not Upload.objects.filter(state="queued").exists()


def test_every_method_about_records_is_tested_here():
    assert {name for name in public_methods() if "record" in name} == {*CALLS, *OTHERS}
