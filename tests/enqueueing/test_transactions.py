"""A chain is enqueued in the caller's transaction, and is committed or rolled back with it."""

from contextlib import ExitStack

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

charge = JobType("shop.charge")
mail = JobType("shop.mail")


class Undo(Exception):
    pass


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_chain_is_committed_with_other_rows_and_workers_are_notified_after_the_outermost_commit(sent, depth):
    with ExitStack() as blocks:
        for _ in range(depth):
            blocks.enter_context(transaction.atomic())
        Effect.objects.create(job_id=charge.enqueue(1).id, label="order")
        transaction.on_commit(lambda: sent.append(("committed", {str(Job.objects.count())})))
        assert not (depth and sent)
    assert Effect.objects.get().job_id == Job.objects.get().id
    assert sent == [("default", {"shop.charge"}), ("committed", {"1"})]


def test_rollback_leaves_nothing_and_sends_no_wake_up(sent):
    @transaction.atomic
    def order():
        charge.enqueue(1)
        chains.enqueue_many([mail.item(2), mail.item(3)])
        raise Undo

    with pytest.raises(Undo):
        order()
    assert not Job.objects.exists()
    assert sent == []


def test_rolled_back_savepoint_discards_its_chains_and_wake_ups(sent):
    @transaction.atomic
    def order():
        mail.enqueue(2)
        raise Undo

    with transaction.atomic():
        kept = charge.enqueue(1)
        with pytest.raises(Undo):
            order()
    assert [job.id for job in Job.objects.all()] == [kept.id]
    assert sent == [("default", {"shop.charge"})]


def test_repeated_wake_ups_of_one_type_are_merged(sent):
    with transaction.atomic():
        for number in range(50):
            charge.enqueue(number)
    assert len(sent) < 10


def test_types_of_one_call_are_sent_together_and_others_separately(sent):
    chains.enqueue_many([charge.item(1), JobType("shop.pack").item(2), charge.item(3)])
    mail.enqueue(2)
    assert sent == [("default", {"shop.charge", "shop.pack"}), ("default", {"shop.mail"})]


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
    ran = []
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
