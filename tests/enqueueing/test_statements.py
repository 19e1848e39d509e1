"""Enqueueing takes one statement, however many chains there are."""

from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import JobType

pytestmark = pytest.mark.django_db

charge: JobType[Any, Any] = JobType("shop.charge")
mail: JobType[Any, Any] = JobType("shop.mail")


def test_chain_takes_one_insert():
    charge.enqueue(0)
    with CaptureQueriesContext(connection) as queries:
        charge.enqueue(1)
        charge.enqueue(2, delay=5, priority=1, queue="mail", max_attempts=2)
    assert [query["sql"].split()[:2] for query in queries] == [["INSERT", "INTO"]] * 2


@pytest.mark.parametrize("count", [1, 10, 3_000])
def test_many_chains_take_one_insert(count):
    with CaptureQueriesContext(connection) as queries:
        created = chains.enqueue_many([charge.item(number) for number in range(count)])
    assert len(queries) == 1
    assert len(created) == Job.objects.count() == count


@pytest.mark.slow
def test_more_than_ten_thousand_chains_take_a_few_statements():
    with CaptureQueriesContext(connection) as queries:
        chains.enqueue_many([charge.item(number) for number in range(25_000)])
    assert len(queries) <= 5
    assert Job.objects.count() == 25_000


def test_empty_list_takes_no_statement():
    with CaptureQueriesContext(connection) as queries:
        assert chains.enqueue_many([]) == []
    assert len(queries) == 0


def test_given_id_takes_a_savepoint_and_no_query():
    with CaptureQueriesContext(connection) as queries:
        charge.enqueue(1, id=uuid4())
    assert [query["sql"].split()[0] for query in queries] == ["SAVEPOINT", "INSERT", "RELEASE"]


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
