"""A chain is enqueued in the caller's transaction, and is committed or rolled back with it."""

from typing import Any

import pytest
from django.db import OperationalError, transaction
from django.test import TestCase

from django_jobchains import chains
from django_jobchains.exceptions import InvalidInput
from django_jobchains.models import Job
from django_jobchains.processors import JobType
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.notifiers import notifier

pytestmark = committed

Sent = list[tuple[str, set[str]]]

charge: JobType[Any, Any] = JobType("shop.charge")
mail: JobType[Any, Any] = JobType("shop.mail")


class Undo(Exception):
    pass


def test_outside_a_transaction_a_chain_is_committed_at_once_and_workers_are_notified(sent):
    chain = charge.enqueue(1)
    assert Job.objects.get().id == chain.id
    assert sent == [("default", {"shop.charge"})]


def test_chain_is_committed_with_other_rows(sent):
    with transaction.atomic():
        Effect.objects.create(job_id=charge.enqueue(1).id, label="order")
        assert sent == []
    assert Job.objects.count() == Effect.objects.count() == 1
    assert sent == [("default", {"shop.charge"})]


def test_rollback_leaves_nothing_and_sends_no_wake_up(sent):
    @transaction.atomic
    def order() -> None:
        charge.enqueue(1)
        chains.enqueue_many([mail.item(2), mail.item(3)])
        raise Undo

    with pytest.raises(Undo):
        order()
    assert not Job.objects.exists()
    assert sent == []


def test_rolled_back_savepoint_discards_its_chains_and_wake_ups(sent):
    @transaction.atomic
    def order() -> None:
        mail.enqueue(2)
        raise Undo

    with transaction.atomic():
        kept = charge.enqueue(1)
        with pytest.raises(Undo):
            order()
    assert [job.id for job in Job.objects.all()] == [kept.id]
    assert sent == [("default", {"shop.charge"})]


def test_wake_ups_are_sent_after_the_outermost_commit(sent):
    with transaction.atomic():
        with transaction.atomic():
            with transaction.atomic():
                charge.enqueue(1)
            assert sent == []
        assert sent == []
    assert sent == [("default", {"shop.charge"})]


def test_notified_worker_finds_the_job(sent):
    """The wake-up is sent after the commit."""
    with transaction.atomic():
        charge.enqueue(1)
        transaction.on_commit(lambda: sent.append(("committed", {str(Job.objects.count())})))
    assert sent == [("default", {"shop.charge"}), ("committed", {"1"})]


def test_repeated_wake_ups_of_one_type_are_merged(sent):
    with transaction.atomic():
        for number in range(50):
            charge.enqueue(number)
    assert len(sent) < 10


def test_types_of_one_call_are_sent_together(sent):
    chains.enqueue_many([charge.item(1), mail.item(2), charge.item(3)])
    assert sent == [("default", {"shop.charge", "shop.mail"})]


def test_another_type_directly_afterwards_is_sent(sent):
    charge.enqueue(1)
    mail.enqueue(2)
    assert sent == [("default", {"shop.charge"}), ("default", {"shop.mail"})]


def test_invalid_input_writes_nothing_and_leaves_the_transaction_usable(sent):
    with transaction.atomic():
        charge.enqueue(1)
        with pytest.raises(InvalidInput):
            mail.enqueue(float("nan"))
    assert Job.objects.count() == 1
    assert sent == [("default", {"shop.charge"})]


@pytest.mark.parametrize("error", [OSError, OperationalError, ValueError])
@pytest.mark.parametrize("in_transaction", [False, True])
def test_wake_up_that_cannot_be_sent_rolls_back_nothing(error, in_transaction):
    ran: list[bool] = []
    with notifier("FailingNotifier", error=error):
        if in_transaction:
            with transaction.atomic():
                charge.enqueue(1)
                transaction.on_commit(lambda: ran.append(True))
        else:
            charge.enqueue(1)
    assert Job.objects.count() == 1
    assert ran == [True] * in_transaction


def test_without_autocommit_a_chain_is_committed_by_the_caller(sent):
    transaction.set_autocommit(False)
    try:
        charge.enqueue(1)
        transaction.rollback()
        assert not Job.objects.exists()
        transaction.rollback()
        charge.enqueue(2)
        transaction.commit()
        assert Job.objects.get().input == 2
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)


@pytest.mark.usefixtures("sent")
class InATestCase(TestCase):
    """A ``TestCase`` wraps each test in a transaction that is never committed."""

    def test_enqueueing_works(self):
        chain = charge.enqueue({"a": 1})
        assert chains.get(chain.id).input == {"a": 1}
        assert chain.status == "pending"

    def test_callbacks_can_be_captured(self):
        with self.captureOnCommitCallbacks() as callbacks:
            charge.enqueue(1)
        assert len(callbacks) == 1
