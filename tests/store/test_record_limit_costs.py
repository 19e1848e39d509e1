"""The cost of a dequeue of limited records: one index probe for each key, however many records the keys have."""

import pytest
from django.db import connection, models, transaction
from django.db.models import Q

from django_jobchains.models import RateState
from django_jobchains.processors import Concurrency, Processors, Rate
from django_jobchains.store import get_store
from django_jobchains.store.deduplication import TENANT_SEPARATOR
from django_jobchains.store.record_limits import RecordRotation
from django_jobchains.store.records import DequeueRequest
from tests.records.models import Upload
from tests.support.jobs import database_now
from tests.support.plans import cost_of, use_plans

pytestmark = pytest.mark.django_db(transaction=True)

KEYS = 1_000
LIMIT = 2
FREE = 777
#: The index that the system check suggests.
INDEX = models.Index(
    fields=["size", "state", "process_after", "queued_at"],
    condition=Q(state__in=["queued", "errored"]),
    name="upload_turns",
)
#: The cost that is allowed for each key that a dequeue passes, and for the statements.
FOR_A_KEY = {"postgresql": 12, "sqlite": 250}
FOR_THE_STATEMENTS = {"postgresql": 400, "sqlite": 8_000}


@pytest.fixture(autouse=True)
def _index(transactional_db):
    if connection.vendor == "postgresql":  # Otherwise, rows that earlier tests have deleted may still be read.
        with connection.cursor() as cursor:
            cursor.execute(f"TRUNCATE {Upload._meta.db_table}, {RateState._meta.db_table} CASCADE")
    with connection.schema_editor() as editor:
        editor.add_index(Upload, INDEX)
    yield
    with connection.schema_editor() as editor:
        editor.remove_index(Upload, INDEX)


@pytest.fixture(
    params=[{"concurrency": Concurrency(LIMIT, key="size")}, {"rate": Rate(LIMIT, per="1h", key="size")}], ids=list
)
def kind(registry, request):
    registry.add(processors := Processors())
    processors.records(Upload, **request.param, retry_after=60)(lambda record, run: None)
    return processors.record_types["records.upload"]


def fill(kind, records_of_a_key, *, is_saturated=True):
    """Create keys with this many waiting records, all at their limit except one, or all free."""
    add(records_of_a_key, "queued")
    rate = kind.limited("default").rate
    if is_saturated and rate:
        starts = [(f"{rate.name}{TENANT_SEPARATOR}{key}", rate.rate) for key in range(KEYS) if key != FREE]
        get_store().rates.charge(LIMIT * starts, database_now())
    elif is_saturated:
        add(LIMIT, "processing")
        Upload.objects.filter(state="processing", size=FREE).delete()
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {Upload._meta.db_table}")


def add(records_of_a_key, state):
    """Create records of each key: the first by the ORM, the others as copies, which takes a tenth of the time."""
    first, *_, last = Upload.objects.bulk_create([Upload(state=state, size=key) for key in range(KEYS)])
    table = Upload._meta.db_table
    columns = ", ".join(field.column for field in Upload._meta.concrete_fields if not field.primary_key)
    copy = f"INSERT INTO {table} ({columns}) SELECT {columns} FROM {table} WHERE id BETWEEN %s AND %s ORDER BY id"
    with connection.cursor() as cursor:
        for _ in range(records_of_a_key - 1):
            cursor.execute(copy, [first.pk, last.pk])


def dequeue(kind, limit=10):
    store, rotation = get_store(), RecordRotation()
    rotation.served = 3
    request = DequeueRequest(kind.select("default"), limit, "host", "default", kind.retry_seconds)
    limits = kind.limited("default")
    return store.record_limits.dequeue(kind.table("default"), limits, rotation, request, joins_transaction=True)


def costs(run):
    """Return the cost of a call with each kind of plan."""
    found = []
    for mode in ("auto", "force_generic_plan") if connection.vendor == "postgresql" else ("auto",):
        with transaction.atomic():
            if connection.vendor == "postgresql":
                use_plans(mode)
            found.append(cost_of(run))
            transaction.set_rollback(True)
    return found


def test_a_dequeue_among_saturated_keys_does_not_depend_on_their_backlogs(kind):
    def run():
        found = dequeue(kind)
        assert set(Upload.objects.filter(pk__in=[each.id for each in found]).values_list("size", flat=True)) == {FREE}

    fill(kind, 2)
    few = max(costs(run))
    add(18, "queued")
    many = max(costs(run))
    vendor = connection.vendor
    assert many <= FOR_A_KEY[vendor] * KEYS + FOR_THE_STATEMENTS[vendor], many
    assert many <= 1.5 * few, (few, many)


def test_a_dequeue_with_free_places_reads_as_many_keys_as_it_starts(kind):
    fill(kind, 20, is_saturated=False)

    def run():
        assert len(dequeue(kind)) == 10

    found = max(costs(run))
    assert found <= FOR_THE_STATEMENTS[connection.vendor] * 5
