"""Enqueueing takes one statement, however many chains there are."""

from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import JobType

pytestmark = pytest.mark.django_db

charge, mail = JobType("shop.charge"), JobType("shop.mail")

#: A call, and the beginnings of its statements.
CALLS = {
    "without options": (lambda: charge.enqueue(1), ["INSERT"]),
    "with options": (lambda: charge.enqueue(2, delay=5, priority=1, queue="mail", max_attempts=2), ["INSERT"]),
    "many": (lambda: chains.enqueue_many([charge.item(number) for number in range(100)]), ["INSERT"]),
    "none": (lambda: chains.enqueue_many([]), []),
    "with an id": (lambda: charge.enqueue(1, id=uuid4()), ["SAVEPOINT", "INSERT", "RELEASE"]),
}


@pytest.mark.parametrize("name", CALLS)
def test_enqueueing_takes_one_statement(name):
    call, statements = CALLS[name]
    charge.enqueue(0)
    with CaptureQueriesContext(connection) as queries:
        call()
    assert [query["sql"].split()[0] for query in queries] == statements


def test_chains_are_returned_in_order():
    items = [(charge if number % 3 else mail).item(number) for number in range(500)]
    created = chains.enqueue_many(items)
    assert [chain.input for chain in created] == list(range(500))
    assert [chain.type_name for chain in created[:4]] == ["shop.mail", "shop.charge", "shop.charge", "shop.mail"]
    assert list(Job.objects.order_by("id").values_list("input", flat=True)) == list(range(500))
    assert [chain.id for chain in created] == [item.id for item in items]


def test_attributes_of_a_new_chain_take_no_query():
    chain = charge.enqueue({"a": 1})
    with CaptureQueriesContext(connection) as queries:
        assert (chain.type_name, chain.input) == ("shop.charge", {"a": 1})
        assert chain.created_at.utcoffset() is not None
        assert chain.deduplicated is False
        assert repr(chain) == f"<Chain: shop.charge {chain.id}>"
    assert len(queries) == 0
