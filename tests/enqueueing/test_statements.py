"""Enqueueing takes one statement for up to a thousand chains."""

from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.processors import JobType
from django_jobchains.store.jobs import BATCH_SIZE

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
    assert [query["sql"].split()[0].replace("WITH", "INSERT") for query in queries] == statements


def test_a_large_call_is_sent_in_batches_of_a_fixed_size():
    items = [charge.item(number) for number in range(2 * BATCH_SIZE + 1)]
    with CaptureQueriesContext(connection) as queries:
        created = chains.enqueue_many(items)
    assert [query["sql"].split()[0].replace("WITH", "INSERT") for query in queries] == ["INSERT"] * 3
    assert [chain.id for chain in created] == [item.id for item in items]
    assert list(Job.objects.order_by("id").values_list("input", flat=True)) == list(range(2 * BATCH_SIZE + 1))


def test_a_statement_has_a_limited_size(monkeypatch):
    def note(execute, sql, params, many, context):
        sizes.append(sum(str(param).count("x") for param in params))
        return execute(sql, params, many, context)

    monkeypatch.setattr("django_jobchains.store.jobs.MAX_BATCH_CHARACTERS", 1_000)
    sizes = []
    items = [charge.item("x" * size) for size in (300, 300, 300, 300, 5_000, 300, 300)]
    with connection.execute_wrapper(note):
        assert [chain.input for chain in chains.enqueue_many(items)] == [item.input.strip('"') for item in items]
    assert sizes == [900, 300, 5_000, 600]


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
