"""``REQUIRE_TRANSACTION`` and ``OTHER_TRANSACTION`` report an enqueue outside of the transaction of its database."""

import warnings
from contextlib import nullcontext

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import TestCase, override_settings

from django_jobchains import chains, testing
from django_jobchains.exceptions import TransactionRequired
from django_jobchains.models import Job
from django_jobchains.processors import JobType, Processors, Registry
from django_jobchains.worker import Worker
from tests.support.attempts import WITHOUT_WAKE_UPS, committed
from tests.support.jobs import SHIP

ship = JobType(SHIP)
REQUIRED = {**WITHOUT_WAKE_UPS, "REQUIRE_TRANSACTION": True}
ENQUEUES = {
    "enqueue": lambda: ship.enqueue(),
    "enqueue_many": lambda: chains.enqueue_many([ship.item(), ship.item()]),
    "aenqueue": lambda: async_to_sync(ship.aenqueue)(),
}
each_enqueue = pytest.mark.parametrize("enqueue", ENQUEUES.values(), ids=ENQUEUES)


@committed
class TestRequired:
    @pytest.fixture(autouse=True)
    def _required(self, settings):
        settings.JOBCHAINS = REQUIRED

    @each_enqueue
    def test_enqueueing_outside_of_a_transaction_raises_an_error(self, enqueue):
        with pytest.raises(
            TransactionRequired,
            match=r"open on database 'default'.*atomic\(\):', in async code in a .* with sync_to_async",
        ):
            enqueue()
        assert not Job.objects.exists()

    @each_enqueue
    def test_enqueueing_inside_of_a_transaction_is_allowed(self, enqueue):
        with transaction.atomic():
            enqueue()
        assert Job.objects.exists()

    def test_transaction_without_autocommit_counts(self):
        transaction.set_autocommit(False)
        try:
            ship.enqueue()
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
        assert Job.objects.exists()

    def test_handler_may_enqueue_in_its_phases_and_continue_its_chain(self):
        errors = []
        processors, registry = Processors(), Registry()
        registry.add(processors)

        @processors.register("shop.pack")
        def pack(job):
            try:
                ship.enqueue("outside")
            except TransactionRequired as error:
                errors.append(str(error))
            with job.prepare():
                ship.enqueue("prepare")
            with job.complete():
                ship.enqueue("complete")
                return job.continue_with(ship, "continuation")

        with transaction.atomic():
            pack.enqueue()
        Worker(registry=registry, slots=1).run_until_idle()
        assert set(Job.objects.of_type(SHIP).values_list("input", flat=True)) == {"prepare", "complete", "continuation"}
        assert len(errors) == 1


@committed
class TestOtherTransaction:
    """Enqueueing inside of a transaction of another database."""

    @pytest.fixture(params=["warn", "error", "ignore", None])
    def setting(self, request, settings):
        settings.JOBCHAINS = {**WITHOUT_WAKE_UPS, **({"OTHER_TRANSACTION": request.param} if request.param else {})}
        return request.param or "warn"

    def test_setting_chooses_a_warning_an_error_or_nothing(self, setting, second_alias):
        with transaction.atomic(using=second_alias), reported(setting):
            ship.enqueue()
        assert Job.objects.count() == (setting != "error")

    def test_warning_names_the_line_that_enqueues(self, second_alias):
        for enqueue in (lambda: ship.enqueue(), lambda: chains.enqueue_many([ship.item()])):
            with transaction.atomic(using=second_alias), pytest.warns(RuntimeWarning, match="remains") as found:
                enqueue()
            assert [warning.filename for warning in found] == [__file__]

    def test_transactions_on_both_databases_are_allowed(self, setting, second_alias):
        with transaction.atomic(using=second_alias), transaction.atomic():
            ship.enqueue()
        with transaction.atomic(), transaction.atomic(using=second_alias):
            ship.enqueue(using=second_alias)
        assert Job.objects.exists()

    def test_no_transaction_is_allowed(self, setting, second_alias):
        ship.enqueue()
        ship.enqueue(using=second_alias)


def reported(setting):
    text = r"enqueued on database 'default', but the open transaction is on 'second'"
    if setting == "warn":
        return pytest.warns(RuntimeWarning, match=text)
    return pytest.raises(TransactionRequired, match=text) if setting == "error" else nullcontext()


class InATestCase(TestCase):
    """The transactions of a ``TestCase`` are ignored."""

    databases = {"default"}

    def test_they_do_not_satisfy_require_transaction(self):
        assert connection.in_atomic_block
        with override_settings(JOBCHAINS=REQUIRED):
            with pytest.raises(TransactionRequired):
                ship.enqueue()
            with transaction.atomic():
                ship.enqueue()
        assert Job.objects.count() == 1

    def test_they_cause_no_warning(self):
        with warnings.catch_warnings(), override_settings(JOBCHAINS={"OTHER_TRANSACTION": "error"}):
            warnings.simplefilter("error")
            ship.enqueue()
            testing.run_due_jobs()
