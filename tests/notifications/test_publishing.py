"""Publishing hints: after the outermost commit, merged, and without affecting the committed work."""

from types import SimpleNamespace
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, transaction

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.notifications import (
    EVERY,
    Hint,
    Notifier,
    NullNotifier,
    get_notifier,
    job_scheduled,
    publish_after_commit,
)
from django_jobchains.notifications.hints import MERGE_SECONDS, REQUERY_SECONDS
from django_jobchains.notifications.in_process import InProcessNotifier
from django_jobchains.processors import JobType
from django_jobchains.worker.claim_wait import WakeUp
from django_jobchains.worker.wake_order import WakeOrder
from tests.support.clocks import Clock
from tests.support.waiting import until_completed
from tests.support.workers import context_for

SHIP, MAIL = job_scheduled("shop.ship"), job_scheduled("mail.send")


class RecordingNotifier(Notifier):
    """Records the hints of each ``send``, or raises ``error``."""

    sent: list[set[Hint]] = []
    error: Exception | None = None

    def send(self, hints):
        if self.error:
            raise self.error
        self.sent.append(set(hints))


def order_for_every_hint(wake):
    """The wake order of a worker that queries because of every hint."""
    lanes = {"shop.ship": SimpleNamespace(free=lambda: 1)}
    context = context_for(poll_seconds=60)
    context.wake = wake
    return WakeOrder(context, NullNotifier("default"), lanes)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("django_jobchains.notifications.hints.time", clock)
    monkeypatch.setattr("django_jobchains.worker.claim_wait.time", clock)
    return clock


@pytest.fixture
def sent(settings, transactional_db):
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": f"{__name__}.RecordingNotifier"}}
    RecordingNotifier.sent, RecordingNotifier.error = [], None
    yield RecordingNotifier.sent
    RecordingNotifier.error = None


@pytest.fixture
def ship():
    return JobType("shop.ship")


def test_hint_is_sent_at_once_without_a_transaction(ship, sent):
    ship.enqueue()
    assert sent == [{SHIP}]


def test_hint_is_sent_after_the_outermost_commit(ship, sent):
    with transaction.atomic():
        with transaction.atomic():
            ship.enqueue()
        assert sent == []
    assert sent == [{SHIP}]


def test_rolled_back_savepoint_drops_its_own_hints(ship, sent):
    with transaction.atomic():
        ship.enqueue()
        with transaction.atomic():
            JobType[Any, Any]("mail.send").enqueue()
            transaction.set_rollback(True)
    assert sent == [{SHIP}]


def test_rolled_back_transaction_sends_nothing(ship, sent):
    with transaction.atomic():
        ship.enqueue()
        transaction.set_rollback(True)
    assert sent == []
    assert not Job.objects.exists()


def test_thousand_jobs_in_one_transaction_send_few_hints(ship, sent):
    with transaction.atomic():
        for _ in range(1_000):
            ship.enqueue()
    assert 1 <= len(sent) < 50


def test_many_items_send_one_hint_per_type(ship, sent):
    mail = JobType[Any, Any]("mail.send")
    chains.enqueue_many([job_type.item() for job_type in (ship, mail) for _ in range(500)])
    assert sent == [{SHIP, MAIL}]


@pytest.mark.parametrize("error", [DatabaseError("gone"), OSError("refused"), RuntimeError("a bug in a driver")])
def test_failure_to_send_undoes_nothing(ship, sent, error):
    RecordingNotifier.error = error
    ship.enqueue()
    with transaction.atomic():
        ship.enqueue()
    assert Job.objects.count() == 2


def test_nothing_is_sent_with_manual_transaction_management(ship, sent):
    """Django does not report the commit in this case, so the poll finds the jobs."""
    transaction.set_autocommit(False)
    try:
        ship.enqueue()
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert sent == []
    assert Job.objects.count() == 1


def test_publish_after_commit_sends_any_hint(sent):
    with transaction.atomic():
        publish_after_commit("default", [Hint("chain_finished", "1")])
        assert sent == []
    assert sent == [{Hint("chain_finished", "1")}]


def test_hint_that_follows_closely_is_dropped(sent, clock):
    notifier = get_notifier("default")
    notifier.publish([SHIP])
    clock.now += MERGE_SECONDS * 0.9
    notifier.publish([SHIP, MAIL])
    clock.now += MERGE_SECONDS * 0.2
    notifier.publish([SHIP, MAIL])
    assert sent == [{SHIP}, {MAIL}, {SHIP}]


def test_hints_are_dropped_by_kind_and_subject(sent, clock):
    notifier = get_notifier("default")
    for hint in (SHIP, Hint("chain_finished", SHIP.subject), Hint("ownership_lost", SHIP.subject)):
        notifier.publish([hint])
    assert len(sent) == 3


def test_worker_queries_again_after_hints_may_have_been_dropped(clock):
    """The jobs of dropped hints are committed before the second query."""
    wake = WakeUp()
    order = order_for_every_hint(wake)
    order.on_hint(SHIP)
    wake.clear()
    assert wake.is_second_query_due
    clock.now += MERGE_SECONDS
    wake.clear()
    assert wake.is_second_query_due
    clock.now += REQUERY_SECONDS - MERGE_SECONDS
    wake.clear()
    assert not wake.is_second_query_due


def test_later_hint_postpones_the_second_query(clock):
    wake = WakeUp()
    order = order_for_every_hint(wake)
    order.on_hint(SHIP)
    clock.now += REQUERY_SECONDS * 0.9
    order.on_hint(SHIP)
    clock.now += REQUERY_SECONDS * 0.9
    wake.clear()
    assert wake.is_second_query_due


@pytest.mark.parametrize(
    ("hint", "wakes"),
    [
        (SHIP, True),
        (job_scheduled(EVERY), True),
        (MAIL, False),
        (Hint("chain_finished", "shop.ship"), False),
        (Hint("ownership_lost", "shop.ship"), False),
    ],
)
def test_worker_wakes_only_for_its_own_types(hint, wakes):
    wake = WakeUp()
    order = order_for_every_hint(wake)
    order.on_hint(hint)
    assert wake.will_query_soon is wakes
    assert wake.is_second_query_due is wakes


def test_jobs_are_found_by_the_poll_without_hints(processors, start_worker, settings):
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": "django_jobchains.notifications.NullNotifier"}}
    quick = processors.register("worker.quick")(lambda job: None)
    start_worker(poll_seconds=0.3)
    for _ in range(5):
        enqueued = [quick.enqueue() for _ in range(5)]
        for chain in enqueued:
            until_completed(chain)


class TestBackendSetting:
    @pytest.fixture(autouse=True)
    def _database(self, db):
        """Allow the database, because some checks of settings connect to it."""

    def test_default_depends_on_the_vendor(self):
        from django.db import connection

        expected = {"postgresql": "PostgresNotifier", "sqlite": "SqliteNotifier"}[connection.vendor]
        assert type(get_notifier("default")).__name__ == expected

    def test_setting_selects_the_backend(self, settings):
        settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": "django_jobchains.notifications.in_process.InProcessNotifier"}}
        assert isinstance(get_notifier("default"), InProcessNotifier)
        settings.JOBCHAINS = {
            "NOTIFIER": {"BACKEND": "django_jobchains.notifications.base.NullNotifier", "OPTIONS": {}}
        }
        assert isinstance(get_notifier("default"), NullNotifier)

    def test_notifier_is_cached_per_alias(self):
        assert get_notifier("default") is get_notifier("default")

    @pytest.mark.parametrize(
        ("notifier", "message"),
        [
            ({"BACKEND": "no.such.Notifier"}, "no.such.Notifier"),
            ({"BACKEND": "django_jobchains.notifications.base.Nothing"}, "Nothing"),
            ({"BACKEND": "nonsense"}, "nonsense"),
            ({"OPTIONS": {"colour": "red"}}, "colour"),
            ({"URL": "x"}, "URL"),
        ],
    )
    def test_invalid_setting_raises_improperly_configured(self, settings, notifier, message):
        settings.JOBCHAINS = {"NOTIFIER": notifier}
        with pytest.raises(ImproperlyConfigured, match=message):
            get_notifier("default")
