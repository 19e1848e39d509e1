"""QuerySets and conditions of the project find the same records as in Django, whatever the types of their values."""

from decimal import Decimal

import pytest
from django.db import connection
from django.db.models import F, Func, Q, Value

from django_jobchains import records
from django_jobchains.processors import Concurrency, Rate
from tests.records.models import Parcel
from tests.support.connections import committing

pytestmark = committing

PARCELS = Parcel.objects.alias(remainder=F("size") % 2, half=F("size") * 0.5)
CONDITIONS = {
    "key of JSON": Q(label__city="Ulm"),
    "number in JSON": Q(label__floor__gt=1.5),
    "text with a percent sign": Q(label__road__endswith="%s"),
    "bytes": Q(content=b"\x00%s"),
    "remainder": Q(remainder=0),
    "remainder without values": Q(size__gt=F("size") % F("size")),
    "float": Q(half__gt=0.5),
    "decimal": Q(half__gt=Decimal("0.5")),
    "argument of a function": Q(size=Func(Value(-2), function="ABS")),
}
if connection.vendor == "postgresql":
    CONDITIONS["part of JSON"] = Q(label__contains={"city": "Ulm"})


@pytest.fixture(params=[False, True], ids=["quiet", "logged"], autouse=True)
def _logging(request):
    """Let Django log its statements, as with DEBUG, or not."""
    connection.force_debug_cursor = request.param
    yield
    connection.force_debug_cursor = False


@pytest.fixture(params=CONDITIONS.values(), ids=CONDITIONS.keys())
def condition(request):
    """A condition that only the parcel of ``found`` meets."""
    return request.param


@pytest.fixture
def found(condition):
    Parcel.objects.create(size=-1, label={"city": "Bonn", "floor": 1, "road": "s"}, content=b"\x00s")
    parcel = Parcel.objects.create(size=2, label={"city": "Ulm", "floor": 2, "road": "100%s"}, content=b"\x00%s")
    assert PARCELS.get(condition) == parcel
    return parcel


@pytest.mark.parametrize("order_by", [(), [(F("size") * 0.5).desc(), "id"]])
@pytest.mark.parametrize("is_hook", [False, True])
def test_they_are_dequeued_and_counted(limited, store, found, condition, order_by, is_hook):
    """``is_hook``: the condition is a result of ``pre_dequeue``."""
    parcels = limited(Parcel, queryset=PARCELS if is_hook else PARCELS.filter(condition), order_by=order_by)
    request = parcels.request(condition=condition if is_hook else None)
    assert store.records.count_by_state(parcels.table, request.select, 10).due == 1
    assert [each.id for each in store.records.dequeue(parcels.table, request)] == [found.pk]


@pytest.mark.parametrize("key", ["size", None])
@pytest.mark.usefixtures("found")
def test_they_are_dequeued_within_their_limits(limited, condition, key):
    parcels = limited(
        Parcel, queryset=PARCELS.filter(condition), concurrency=Concurrency(2, key=key), rate=Rate(1, 60, key=key)
    )
    assert [parcels.dequeue(joins_transaction=False).total() for _ in range(2)] == [1, 0]


def test_people_can_move_them(limited, found, condition):
    limited(Parcel)
    for move, state in [("cancel", "cancelled"), ("requeue", "queued"), ("cancel", "cancelled"), ("retry", "queued")]:
        assert getattr(records, move)(PARCELS.filter(condition)) == 1
        assert dict(Parcel.objects.values_list("size", "state")) == {2: state, -1: "queued"}
