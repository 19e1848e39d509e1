"""When hints are sent: after the outermost commit, merged, and never at the cost of what was committed."""

import threading
from collections.abc import Callable, Collection, Iterator
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
from django_jobchains.notifications.in_process import InProcessNotifier
from django_jobchains.notifications.merging import LOOK_AGAIN_SECONDS, MERGE_SECONDS
from django_jobchains.processors import JobType, Processors
from django_jobchains.worker.turns import Turns
from django_jobchains.worker.wakeups import WakeUp
from tests.worker.fixtures import StartWorker
from tests.worker.waiting import until, until_completed

SHIP, MAIL = job_scheduled("shop.ship"), job_scheduled("mail.send")


class RecordingNotifier(Notifier):
    """Keeps what it is to send; fails on request."""

    sent: list[set[Hint]] = []
    error: Exception | None = None

    def send(self, hints: Collection[Hint]) -> None:
        if self.error:
            raise self.error
        self.sent.append(set(hints))


def everybody() -> Turns:
    """Of a worker that looks for every hint."""
    nobody = NullNotifier("default")
    return Turns(nobody, group="", poll_seconds=60, free=lambda name: 1, is_narrow=lambda: False, look=lambda: None)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("django_jobchains.notifications.merging.time", clock)
    monkeypatch.setattr("django_jobchains.worker.wakeups.time", clock)
    return clock


@pytest.fixture
def sent(settings: Any, transactional_db: None) -> Iterator[list[set[Hint]]]:
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": f"{__name__}.RecordingNotifier"}}
    RecordingNotifier.sent, RecordingNotifier.error = [], None
    yield RecordingNotifier.sent
    RecordingNotifier.error = None


@pytest.fixture
def ship() -> JobType[Any, Any]:
    return JobType("shop.ship")


def test_a_hint_is_sent_at_once_without_a_transaction(ship: JobType[Any, Any], sent: list[set[Hint]]) -> None:
    ship.enqueue()
    assert sent == [{SHIP}]


def test_a_hint_waits_for_the_outermost_commit(ship: JobType[Any, Any], sent: list[set[Hint]]) -> None:
    with transaction.atomic():
        with transaction.atomic():
            ship.enqueue()
        assert sent == []
    assert sent == [{SHIP}]


def test_a_rolled_back_savepoint_drops_its_own_hints(ship: JobType[Any, Any], sent: list[set[Hint]]) -> None:
    with transaction.atomic():
        ship.enqueue()
        with transaction.atomic():
            JobType[Any, Any]("mail.send").enqueue()
            transaction.set_rollback(True)
    assert sent == [{SHIP}]


def test_a_rolled_back_transaction_sends_nothing(ship: JobType[Any, Any], sent: list[set[Hint]]) -> None:
    with transaction.atomic():
        ship.enqueue()
        transaction.set_rollback(True)
    assert sent == []
    assert not Job.objects.exists()


def test_a_thousand_jobs_in_one_transaction_send_few_hints(ship: JobType[Any, Any], sent: list[set[Hint]]) -> None:
    with transaction.atomic():
        for _ in range(1_000):
            ship.enqueue()
    assert 1 <= len(sent) < 50


def test_many_items_send_one_hint_a_type(ship: JobType[Any, Any], sent: list[set[Hint]]) -> None:
    mail = JobType[Any, Any]("mail.send")
    chains.enqueue_many([job_type.item() for job_type in (ship, mail) for _ in range(500)])
    assert sent == [{SHIP, MAIL}]


@pytest.mark.parametrize("error", [DatabaseError("gone"), OSError("refused"), RuntimeError("a bug in a driver")])
def test_a_failure_to_send_undoes_nothing(ship: JobType[Any, Any], sent: list[set[Hint]], error: Exception) -> None:
    RecordingNotifier.error = error
    ship.enqueue()
    with transaction.atomic():
        ship.enqueue()
    assert Job.objects.count() == 2


def test_in_manual_transaction_management_nothing_is_sent(ship: JobType[Any, Any], sent: list[set[Hint]]) -> None:
    """Nobody tells when it commits: the poll finds the jobs."""
    transaction.set_autocommit(False)
    try:
        ship.enqueue()
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert sent == []
    assert Job.objects.count() == 1


def test_publish_after_commit_sends_any_hint(sent: list[set[Hint]]) -> None:
    with transaction.atomic():
        publish_after_commit("default", [Hint("chain_finished", "1")])
        assert sent == []
    assert sent == [{Hint("chain_finished", "1")}]


def test_a_hint_that_follows_closely_is_left_out(sent: list[set[Hint]], clock: Clock) -> None:
    notifier = get_notifier("default")
    notifier.publish([SHIP])
    clock.now += MERGE_SECONDS * 0.9
    notifier.publish([SHIP, MAIL])
    clock.now += MERGE_SECONDS * 0.2
    notifier.publish([SHIP, MAIL])
    assert sent == [{SHIP}, {MAIL}, {SHIP}]


def test_hints_are_left_out_by_kind_and_subject(sent: list[set[Hint]], clock: Clock) -> None:
    notifier = get_notifier("default")
    for hint in (SHIP, Hint("chain_finished", SHIP.subject), Hint("ownership_lost", SHIP.subject)):
        notifier.publish([hint])
    assert len(sent) == 3


def test_a_worker_looks_again_after_hints_may_have_been_left_out(clock: Clock) -> None:
    """Whatever was left out was committed before the second look."""
    wake = WakeUp(["shop.ship"], everybody())
    wake.on_hint(SHIP)
    wake.clear()
    assert wake.is_looking_again
    clock.now += MERGE_SECONDS
    wake.clear()
    assert wake.is_looking_again
    clock.now += LOOK_AGAIN_SECONDS - MERGE_SECONDS
    wake.clear()
    assert not wake.is_looking_again


def test_a_hint_in_the_meantime_puts_the_second_look_off(clock: Clock) -> None:
    wake = WakeUp(["shop.ship"], everybody())
    wake.on_hint(SHIP)
    clock.now += LOOK_AGAIN_SECONDS * 0.9
    wake.on_hint(SHIP)
    clock.now += LOOK_AGAIN_SECONDS * 0.9
    wake.clear()
    assert wake.is_looking_again


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
def test_a_worker_wakes_for_its_own_types(hint: Hint, wakes: bool) -> None:
    wake = WakeUp(["shop.ship"], everybody())
    waiting = threading.Thread(target=wake.wait, args=(2,))
    waiting.start()
    wake.on_hint(hint)
    waiting.join(0.5)
    assert waiting.is_alive() is not wakes
    assert wake.is_looking_again is wakes
    wake.set()
    waiting.join()


@pytest.mark.slow
def test_three_hundred_jobs_one_after_another_are_seen_at_once(
    processors: Processors, start_worker: StartWorker
) -> None:
    """Many of their hints are left out; none waits for the poll, a minute later."""
    quick: JobType[Any, Any] = processors.register("worker.quick")(lambda job: None)
    start_worker()
    for number in range(300):
        chain = quick.enqueue()
        if number % 3 == 0:
            until_completed(chain, 5)
    until(lambda: Job.objects.with_status("completed").count() == 300, 5)


def test_without_any_hint_jobs_are_found_at_the_next_poll(
    processors: Processors, start_worker: StartWorker, settings: Any
) -> None:
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": "django_jobchains.notifications.NullNotifier"}}
    quick: JobType[Any, Any] = processors.register("worker.quick")(lambda job: None)
    start_worker(poll_seconds=0.3)
    for _ in range(5):
        enqueued = [quick.enqueue() for _ in range(5)]
        for chain in enqueued:
            until_completed(chain, 2)


def test_hints_within_one_process_need_no_database(
    processors: Processors, start_worker: StartWorker, settings: Any
) -> None:
    settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": "django_jobchains.notifications.in_process.InProcessNotifier"}}
    quick: JobType[Any, Any] = processors.register("worker.quick")(lambda job: None)
    worker = start_worker()
    until(worker.parts.loop.idle.is_set)
    with transaction.atomic():
        chain = quick.enqueue()
    until_completed(chain, 2)


MakeSettings = Callable[[dict[str, Any]], None]


class TestChoosing:
    @pytest.fixture(autouse=True)
    def _database(self, db: None) -> None:
        """The vendor of an alias is known without a connection; a checked one must be allowed."""

    def test_the_vendor_has_its_own(self) -> None:
        from django.db import connection

        expected = {"postgresql": "PostgresNotifier", "sqlite": "SqliteNotifier"}[connection.vendor]
        assert type(get_notifier("default")).__name__ == expected

    def test_settings_name_one(self, settings: Any) -> None:
        settings.JOBCHAINS = {"NOTIFIER": {"BACKEND": "django_jobchains.notifications.in_process.InProcessNotifier"}}
        assert isinstance(get_notifier("default"), InProcessNotifier)
        settings.JOBCHAINS = {
            "NOTIFIER": {"BACKEND": "django_jobchains.notifications.base.NullNotifier", "OPTIONS": {}}
        }
        assert isinstance(get_notifier("default"), NullNotifier)

    def test_one_is_kept_for_each_alias(self) -> None:
        assert get_notifier("default") is get_notifier("default")

    @pytest.mark.parametrize(
        ("notifier", "words"),
        [
            ({"BACKEND": "no.such.Notifier"}, "no.such.Notifier"),
            ({"BACKEND": "django_jobchains.notifications.base.Nothing"}, "Nothing"),
            ({"BACKEND": "nonsense"}, "nonsense"),
            ({"OPTIONS": {"colour": "red"}}, "colour"),
            ({"URL": "x"}, "URL"),
        ],
    )
    def test_a_wrong_setting_is_a_clear_error(self, settings: Any, notifier: dict[str, Any], words: str) -> None:
        settings.JOBCHAINS = {"NOTIFIER": notifier}
        with pytest.raises(ImproperlyConfigured, match=words):
            get_notifier("default")
