"""Publishing hints: after the outermost commit, merged, and without affecting the committed work."""

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection, transaction

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.notifications import get_notifier
from django_jobchains.processors import JobType
from tests.support.notifiers import notifier
from tests.support.waiting import until_completed

ship, mail = JobType("shop.ship"), JobType("mail.send")
SHIP = ("default", {"shop.ship"})

committing = pytest.mark.django_db(transaction=True)


@committing
def test_hint_is_sent_at_once_without_a_transaction(sent):
    ship.enqueue()
    assert sent == [SHIP]


@committing
def test_hint_is_sent_after_the_outermost_commit(sent):
    with transaction.atomic():
        with transaction.atomic():
            ship.enqueue()
        assert sent == []
    assert sent == [SHIP]


@committing
def test_rolled_back_savepoint_drops_its_own_hints(sent):
    with transaction.atomic():
        ship.enqueue()
        with transaction.atomic():
            mail.enqueue()
            transaction.set_rollback(True)
    assert sent == [SHIP]


@committing
def test_rolled_back_transaction_sends_nothing(sent):
    with transaction.atomic():
        ship.enqueue()
        transaction.set_rollback(True)
    assert sent == []
    assert not Job.objects.exists()


@committing
def test_thousand_jobs_in_one_transaction_send_few_hints(sent):
    with transaction.atomic():
        for _ in range(1_000):
            ship.enqueue()
    assert 1 <= len(sent) < 50


@committing
def test_many_items_send_one_hint_per_type(sent):
    chains.enqueue_many([job_type.item() for job_type in (ship, mail) for _ in range(500)])
    assert sent == [("default", {"shop.ship", "mail.send"})]


@committing
@pytest.mark.parametrize("error", [DatabaseError, OSError, RuntimeError])
def test_failure_to_send_undoes_nothing(error):
    with notifier("FailingNotifier", error=error):
        ship.enqueue()
        with transaction.atomic():
            ship.enqueue()
    assert Job.objects.count() == 2


@committing
def test_nothing_is_sent_with_manual_transaction_management(sent):
    """Django does not report the commit in this case, so the poll finds the jobs."""
    transaction.set_autocommit(False)
    try:
        ship.enqueue()
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert sent == []
    assert Job.objects.count() == 1


def test_jobs_are_found_by_the_poll_without_hints(quick, start_worker, settings):
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": "django_jobchains.notifications.NullNotifier"}}
    start_worker(poll_seconds=0.3)
    for chain in [quick.enqueue() for _ in range(5)]:
        until_completed(chain)


IN_PROCESS = "django_jobchains.notifications.in_process.InProcessNotifier"
DEFAULT = {"postgresql": "PostgresNotifier", "sqlite": "SqliteNotifier"}[connection.vendor]


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({}, DEFAULT),
        ({"BACKEND": IN_PROCESS}, "InProcessNotifier"),
        ({"BACKEND": "django_jobchains.notifications.base.NullNotifier", "OPTIONS": {}}, "NullNotifier"),
    ],
)
def test_setting_selects_one_notifier_for_each_alias(settings, setting, name):
    settings.JOBCHAINS = {"NOTIFIER": setting}
    assert type(get_notifier("default")).__name__ == name
    assert get_notifier("default") is get_notifier("default")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"BACKEND": "no.such.Notifier"}, "no.such.Notifier"),
        ({"BACKEND": "django_jobchains.notifications.base.Nothing"}, "Nothing"),
        ({"BACKEND": "nonsense"}, "nonsense"),
        ({"OPTIONS": {"colour": "red"}}, "colour"),
        ({"URL": "x"}, "URL"),
    ],
)
def test_invalid_setting_raises_improperly_configured(settings, setting, message):
    settings.JOBCHAINS = {"NOTIFIER": setting}
    with pytest.raises(ImproperlyConfigured, match=message):
        get_notifier("default")
