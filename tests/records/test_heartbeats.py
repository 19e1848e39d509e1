"""The heartbeats of all running records of a model are one statement, which locks their rows in the order of ids."""

import math
import time

import pytest
from django.test.utils import CaptureQueriesContext

from django_jobchains.store import DequeueRequest, get_store
from django_jobchains.worker.held_leases import HeldRecords
from tests.records.models import Export, Upload

pytestmark = pytest.mark.django_db(transaction=True)


def beating(kinds, count):
    """Dequeue this number of records of each model, and return the statements of their heartbeats."""
    store = get_store()
    held = [HeldRecords(kind, store) for kind in kinds]
    for kind, leases in zip(kinds, held, strict=True):
        kind.model._base_manager.bulk_create([kind.model() for _ in range(count)])
        request = DequeueRequest(kind.select(store.using), count, "host", kind.queue)
        for found in reversed(store.records.dequeue(kind.table(store.using), request)):
            leases.hold(found.key, kind.stalled_seconds, -math.inf, kind.queue)
        kind.model._base_manager.update(last_heartbeat_at=None)
    assert [len(leases) for leases in held] == [count] * len(kinds)
    with CaptureQueriesContext(store.connection) as captured:
        assert not any(leases.renew_due() for leases in held)
    return [query["sql"] for query in captured if "UPDATE" in query["sql"]]


@pytest.mark.parametrize("count", [1, 20])
def test_a_model_has_one_statement_for_all_its_records(processors, count):
    for model in (Upload, Export):
        processors.records(model)(lambda record, run: None)
    assert len(beating(list(processors.record_types.values()), count)) == 2
    assert not Upload.objects.filter(last_heartbeat_at=None).exists()


@pytest.mark.parametrize("count", [1, 20])
def test_requests_to_cancel_are_looked_for_with_one_query_for_each_model(processors, count):
    store, held = get_store(), list[HeldRecords]()
    for model, cancel_every in ((Upload, 0.001), (Export, 3600)):
        processors.records(model, cancel_every=cancel_every, heartbeat_every=3600, stalled_after=36_000)(
            lambda record, run: None
        )
    signals = []
    for kind in processors.record_types.values():
        kind.model._base_manager.bulk_create([kind.model(state="processing", lease_number=1) for _ in range(count)])
        keys = [(pk, 1) for pk in kind.model._base_manager.values_list("pk", flat=True)]
        held.append(HeldRecords(kind, store))
        signals += [held[-1].hold(key, kind.stalled_seconds, time.monotonic() - 10, kind.queue) for key in keys]
        kind.model._base_manager.update(cancel=True)
    with CaptureQueriesContext(store.connection) as captured:
        for leases in held:
            leases.renew_due()
    assert ["SELECT" in query["sql"] for query in captured if Upload._meta.db_table in query["sql"]] == [True]
    assert not any(Export._meta.db_table in query["sql"] for query in captured)
    assert [signal.reason for signal in signals] == ["cancelled"] * count + [None] * count


@pytest.mark.postgresql
def test_rows_are_locked_in_the_order_of_their_ids(processors):
    processors.records(Upload)(lambda record, run: None)
    [statement] = beating(list(processors.record_types.values()), 5)
    assert 'ORDER BY free."id" FOR NO KEY UPDATE OF free SKIP LOCKED' in statement
