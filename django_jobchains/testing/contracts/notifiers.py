"""The contract of a notifier."""

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from itertools import count
from time import monotonic, process_time, sleep
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError

from django_jobchains.notifications import (
    EVERY,
    KINDS,
    Hint,
    HintKind,
    Listener,
    Notifier,
    chain_finished,
    job_scheduled,
    ownership_lost,
)
from django_jobchains.notifications.hints import RESYNC_HINTS
from django_jobchains.testing.contracts.concurrency import at_once, stays, until

SHIP, MAIL = job_scheduled("shop.ship"), job_scheduled("shop.mail")
#: The time in which a listener reconnects after its server is available again.
BACK_SECONDS = 60.0
#: The longest time that publishing may take in any state of the server, because an enqueue waits for it.
HANGING_SECONDS = 10.0
#: How long the CPU time of an idle listener is measured.
IDLE_SECONDS = 2.0
#: The limit of CPU cores that an idle listener uses. A loop that does not wait uses a whole core.
IDLE_CORES = 0.1
GROUP = "workers"
UNKNOWN = (
    Hint("job_scheduled", "shop.ship", 3, "f" * 16),
    Hint("job_scheduled", "shop.ship", 0, "1"),
    Hint("job_scheduled", "shop.ship", 999_999_999, "2"),
    Hint("job_scheduled", "shop.ship", 3, "../../*>$ {}\r\n\x00"),
    Hint("job_scheduled", 'it\'s "quoted" ✓', 3, "x" * 2_000),
    Hint("chain_finished", "*", 3, "3"),
)
#: Names of types that need quoting somewhere.
NAMES = ["a:b", "naïve.übung ✓", 'it\'s "quoted" \\ 100%', "x" * 200]
arriving = pytest.mark.usefixtures("_hints_arrive")
calling_back = pytest.mark.usefixtures("_calls_back")
sharing_out = pytest.mark.usefixtures("_shares_out")


class ReceivedHints:
    """Records received hints in their order. An instance is a callback for ``listen``."""

    listener: Listener

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def __call__(self, hint: Hint) -> None:
        self.hints.append(hint)

    def of_a_type(self) -> list[Hint]:
        """Return the hints that name a subject."""
        return [hint for hint in self.hints if hint.subject != EVERY]

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition about the hints is true. The error contains the description if it stays false."""
        until(condition, what=lambda: self.hints)

    def until_received(self, *hints: Hint) -> None:
        """Wait for these hints. Each arrives once, in any order, and no other."""
        self.until(lambda: len(self.of_a_type()) == len(hints) and set(self.of_a_type()) == set(hints))

    def until_resynced(self) -> None:
        self.until(lambda: set(self.hints) == set(RESYNC_HINTS))


class NotifierContract:
    """The tests that every notifier must pass. Define how one is created::

        class TestMine(NotifierContract):
            def make(self) -> Notifier:
                return MyNotifier("default")

    The attributes ``carries_hints``, ``calls_back`` and ``has_budgets`` describe what the notifier supports.
    ``interrupt`` stops its server. If the notifier uses the database, mark the class with
    ``pytest.mark.django_db(transaction=True)``.
    """

    #: Whether hints arrive as they were sent. If False, every listener is asked to query the database after each
    #: commit.
    carries_hints = True
    #: Whether listeners are called at all. If False, workers poll.
    calls_back = True
    #: Whether ``take`` distributes the jobs of a hint. If False, it may always return None.
    has_budgets = False

    def make(self) -> Notifier:
        """Create a notifier. Tests create several, as several processes would."""
        raise NotImplementedError

    def interrupt(self) -> AbstractContextManager[None] | None:
        """Return a context manager that stops the server during its block, or None to skip the tests that need it."""
        return None

    @pytest.fixture(autouse=True)
    def _closes_listeners(self) -> Iterator[None]:
        self.listeners: list[Listener] = []
        self._notifiers: list[Notifier] = []
        yield
        for listener in self.listeners:
            listener.close()
        for notifier in self._notifiers:
            notifier.close()

    @pytest.fixture
    def _hints_arrive(self) -> None:
        if not self.carries_hints:
            pytest.skip("The notifier does not transmit hints.")

    @pytest.fixture
    def _calls_back(self) -> None:
        if not self.calls_back:
            pytest.skip("polls")

    @pytest.fixture
    def _shares_out(self) -> None:
        if not self.has_budgets:
            pytest.skip("The notifier has no budgets.")

    def notifier(self) -> Notifier:
        """Create a notifier that is closed after the test."""
        self._notifiers.append(self.make())
        return self._notifiers[-1]

    def listen(
        self, notifier: Notifier, on_hint: Callable[[Hint], None], kinds: Collection[HintKind] = KINDS
    ) -> Listener:
        """Listen, and wait until the listener is connected."""
        listener = notifier.listen(on_hint, kinds)
        self.listeners.append(listener)
        until(lambda: listener.is_alive)
        return listener

    def received(self, notifier: Notifier | None = None, kinds: Collection[HintKind] = KINDS) -> ReceivedHints:
        """Listen with this or a new notifier, and return the hints that arrive."""
        received = ReceivedHints()
        received.listener = self.listen(notifier or self.notifier(), received, kinds)
        return received

    def publish(self, *hints: Hint) -> None:
        """Send hints, as another process would."""
        self.notifier().publish(hints)

    # Publishing: hints arrive unchanged, and the caller is not delayed

    @arriving
    @pytest.mark.parametrize(
        "hints",
        [[SHIP, MAIL], [SHIP, chain_finished(uuid4()), ownership_lost(uuid4())], [*map(job_scheduled, NAMES)]],
        ids=["types", "kinds", "names"],
    )
    def test_a_listener_receives_what_another_notifier_sends(self, hints: list[Hint]) -> None:
        received = self.received()
        self.publish(*hints)
        received.until_received(*hints)

    @arriving
    def test_counts_arrive_with_an_id_that_all_listeners_share(self) -> None:
        first, second = self.received(), self.received()
        self.publish(job_scheduled("shop.ship", 3), MAIL)
        until(lambda: set(first.of_a_type()) == set(second.of_a_type()) == {SHIP, MAIL})
        hints = [{hint: (hint.count, hint.id) for hint in received.of_a_type()} for received in (first, second)]
        assert hints[0] == hints[1]
        count, id_ = hints[0][SHIP]
        assert count == 3
        assert 1 <= len(id_) <= 16
        assert int(id_, 16) >= 0
        assert hints[0][MAIL] == (None, "")

    @arriving
    def test_each_publication_has_its_own_id(self) -> None:
        received = self.received()
        for _ in range(2):
            self.publish(job_scheduled("shop.ship", 1))
        until(lambda: len(received.of_a_type()) == 2)
        assert len({hint.id for hint in received.of_a_type()}) == 2

    @pytest.mark.parametrize("hints", [[], [SHIP]], ids=["nothing", "without listeners"])
    def test_publishing_for_nobody_is_allowed(self, hints: list[Hint]) -> None:
        self.publish(*hints)

    @pytest.mark.parametrize("error", [DatabaseError("gone"), OSError("refused"), TimeoutError()])
    def test_publishing_does_not_raise(self, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(hints: Any) -> None:
            raise error

        notifier = self.notifier()
        monkeypatch.setattr(notifier, "send", fails)
        notifier.publish([SHIP])

    def test_threads_may_publish_at_once(self) -> None:
        notifier = self.notifier()
        received = self.received(notifier)

        def publish(number: int) -> None:
            notifier.publish([job_scheduled(f"type.{number}.{step}") for step in range(10)])

        at_once([lambda number=number: publish(number) for number in range(8)])  # type: ignore[misc]
        if self.carries_hints:
            until(lambda: len(set(received.of_a_type())) == 80, what=lambda: len(received.hints))

    def test_a_closed_notifier_can_be_used_again_and_keeps_its_listener(self) -> None:
        notifier = self.notifier()
        own, received = self.received(notifier), self.received()
        notifier.publish([MAIL])
        for _ in range(2):
            notifier.close()
        assert own.listener.is_alive
        notifier.publish([SHIP])
        if self.carries_hints:
            received.until(lambda: SHIP in received.hints)
            own.until(lambda: {SHIP, MAIL} <= set(own.hints))

    def test_an_unused_notifier_can_be_closed(self) -> None:
        self.notifier().close()

    # Listening: a new listener is asked to query the database, and listeners of a process share a connection

    @calling_back
    def test_a_new_listener_is_asked_to_query(self) -> None:
        """The query is after the subscription, so that it finds earlier commits."""
        self.received().until_resynced()

    @calling_back
    def test_a_second_listener_of_a_process_shares_the_connection_and_is_asked_to_query(self) -> None:
        notifier = self.notifier()
        self.received(notifier).until_resynced()
        threads = set(threading.enumerate())
        self.received(notifier).until_resynced()
        assert set(threading.enumerate()) <= threads

    @calling_back
    @pytest.mark.parametrize("is_last", [False, True])
    def test_closing_a_listener_affects_neither_others_nor_later_ones(self, is_last: bool) -> None:
        notifier = self.notifier()
        left = self.received(notifier)
        if is_last:
            left.listener.close()
        received = self.received(notifier)
        left.listener.close()
        received.until_resynced()
        assert stays(lambda: received.listener.is_alive, 0.2)
        self.publish(SHIP)
        if self.carries_hints:
            received.until(lambda: SHIP in received.hints)

    @arriving
    def test_each_listener_receives_hints(self) -> None:
        shared = self.notifier()
        everyone = [self.received(notifier) for notifier in (shared, shared, self.notifier())]
        self.publish(SHIP)
        for received in everyone:
            received.until_received(SHIP)

    @arriving
    def test_only_the_requested_kinds_are_received(self) -> None:
        notifier, finished = self.notifier(), chain_finished(uuid4())
        jobs, chains = self.received(notifier, ["job_scheduled"]), self.received(notifier, ["chain_finished"])
        jobs.until(lambda: jobs.hints == [job_scheduled(EVERY)])
        chains.until(lambda: set(chains.hints) == {chain_finished(EVERY)})
        self.publish(SHIP, finished)
        until(lambda: jobs.of_a_type() and chains.of_a_type())
        assert (jobs.of_a_type(), chains.of_a_type()) == ([SHIP], [finished])

    @arriving
    def test_kinds_requested_later_are_received_from_then_on(self) -> None:
        notifier, hint = self.notifier(), chain_finished(uuid4())
        jobs = self.received(notifier, ["job_scheduled"])
        both = self.received(notifier, ["job_scheduled", "chain_finished"])
        both.until(lambda: chain_finished(EVERY) in both.hints)
        self.publish(hint)
        both.until(lambda: hint in both.hints)
        both.listener.close()
        self.publish(SHIP)
        jobs.until(lambda: SHIP in jobs.hints)

    @arriving
    def test_an_error_in_a_callback_does_not_affect_others(self, caplog: pytest.LogCaptureFixture) -> None:
        def fails(hint: Hint) -> None:
            raise RuntimeError("someone else's bug")

        notifier = self.notifier()
        self.listen(notifier, fails)
        received = self.received(notifier)
        for hint in (SHIP, MAIL):
            self.publish(hint)
        received.until(lambda: {SHIP, MAIL} <= set(received.hints))
        assert "someone else's bug" in caplog.text

    @arriving
    def test_threads_may_listen_at_once(self) -> None:
        notifier = self.notifier()
        everyone = at_once([lambda: self.received(notifier)] * 6)
        self.publish(SHIP)
        for received in everyone:
            received.until_received(SHIP)

    @calling_back
    def test_an_idle_listener_uses_almost_no_cpu(self) -> None:
        self.received().until_resynced()
        started, used_before = monotonic(), process_time()
        sleep(IDLE_SECONDS)
        assert process_time() - used_before < IDLE_CORES * (monotonic() - started)

    def test_a_closed_listener_receives_nothing(self) -> None:
        received = self.received()
        for _ in range(2):
            received.listener.close()
        before = len(received.hints)
        for _ in range(2):
            self.publish(SHIP)
        assert stays(lambda: len(received.hints) == before, 0.2)

    @arriving
    def test_a_callback_may_close_its_listener(self) -> None:
        received: list[Hint] = []
        closed = threading.Event()

        def close(hint: Hint) -> None:
            if hint == SHIP:
                received.append(hint)
                listener.close()
                closed.set()

        listener: Listener = self.listen(self.notifier(), close)
        self.publish(SHIP)
        assert closed.wait(HANGING_SECONDS), "It waits for itself."
        self.publish(SHIP)
        assert stays(lambda: received == [SHIP], 0.2)

    def test_closing_ends_the_threads(self) -> None:
        before = set(threading.enumerate())
        notifier = self.notifier()
        everyone = [self.received(notifier) for _ in range(3)]
        notifier.publish([SHIP])
        for received in everyone:
            received.listener.close()
        notifier.close()
        until(lambda: set(threading.enumerate()) <= before, what=threading.enumerate)

    def test_a_listener_that_was_never_connected_can_be_closed(self) -> None:
        self.notifier().listen(ReceivedHints()).close()

    def test_after_an_interruption_listeners_query_and_receive_hints(self) -> None:
        """Hints published during the interruption may be lost. Publishing neither waits nor raises an error."""
        sender, received = self.notifier(), self.received()
        sender.publish([SHIP])
        until(lambda: SHIP in received.hints or not self.carries_hints)
        interruption = self.interrupt()
        if interruption is None:
            pytest.skip("there is nothing to interrupt")
        with interruption:
            received.hints.clear()
            for number in range(3):
                started = monotonic()
                sender.publish([job_scheduled(f"lost.{number}", 1)])
                assert monotonic() - started < HANGING_SECONDS
        until(lambda: set(RESYNC_HINTS) <= set(received.hints), BACK_SECONDS, lambda: received.hints)
        numbers = count()

        def arrives() -> bool:
            sender.publish([job_scheduled(f"again.{next(numbers)}")])
            return any(hint.subject.startswith("again.") for hint in received.hints)

        until(lambda: not self.carries_hints or arrives(), BACK_SECONDS, lambda: received.hints)

    # Wake budgets: the workers that take jobs of a hint share them, regardless of their order

    def hint_received(self, count: int) -> tuple[Notifier, Hint]:
        """Return a listening notifier, and the hint about this many jobs that it received."""
        (notifier,), hint = self.hint_received_by(1, count)
        return notifier, hint

    def hint_received_by(self, processes: int, count: int) -> tuple[list[Notifier], Hint]:
        """Return several listening notifiers, and the hint that all of them received."""
        notifiers = [self.notifier() for _ in range(processes)]
        everyone = [self.received(notifier) for notifier in notifiers]
        self.publish(job_scheduled("shop.ship", count))
        hints = {hint.id: hint for received in everyone for hint in until(received.of_a_type)}
        (hint,) = hints.values()
        return notifiers, hint

    @sharing_out
    def test_workers_that_ask_share_the_jobs(self) -> None:
        notifier, hint = self.hint_received(5)
        assert [notifier.take(hint, most, GROUP) for most in (0, 2, 1, 10, 1)] == [0, 2, 1, 2, 0]

    @sharing_out
    def test_processes_share_a_budget(self) -> None:
        (first, second), hint = self.hint_received_by(2, 3)
        assert [one.take(hint, 2, GROUP) for one in (first, second, first)] == [2, 1, 0]

    @sharing_out
    def test_simultaneous_requests_share_the_jobs(self) -> None:
        notifiers, hint = self.hint_received_by(2, 5)
        askers = notifiers * 4
        taken = at_once([lambda asked=asked: asked.take(hint, 1, GROUP) for asked in askers])  # type: ignore[misc]
        assert sorted(taken, key=str) == [0, 0, 0, 1, 1, 1, 1, 1]

    @sharing_out
    def test_a_callback_may_take_from_the_budget(self) -> None:
        notifier, taken, done = self.notifier(), list[int | None](), threading.Event()

        def ask(hint: Hint) -> None:
            if hint.count is not None:
                taken.extend(notifier.take(hint, 2, GROUP) for _ in range(2))
                done.set()

        self.listen(notifier, ask)
        self.publish(job_scheduled("shop.ship", 3))
        until(done.is_set)
        assert taken == [2, 1]

    @sharing_out
    def test_each_group_has_a_budget(self) -> None:
        """Each group of workers serves other queues or types, so it has its own budget."""
        notifier, hint = self.hint_received(2)
        groups = (GROUP, "other", "with spaces, * and ✓", "x" * 300)
        assert [notifier.take(hint, 5, group) for group in groups] == [2] * len(groups)
        assert [notifier.take(hint, 5, group) for group in groups] == [0] * len(groups)

    @sharing_out
    def test_each_hint_has_a_budget(self) -> None:
        hints = [self.hint_received(2) for _ in range(2)]
        assert [notifier.take(hint, 5, GROUP) for notifier, hint in hints] == [2, 2]

    @sharing_out
    def test_a_closed_notifier_can_be_asked(self) -> None:
        """A notifier that has not reconnected yet may not know the budget."""
        notifier, hint = self.hint_received(2)
        notifier.close()
        assert notifier.take(hint, 5, GROUP) in (2, None)

    @pytest.mark.parametrize("hint", [job_scheduled("shop.ship"), job_scheduled("shop.ship", 3)])
    def test_a_hint_without_a_count_or_an_id_has_no_budget(self, hint: Hint) -> None:
        assert self.notifier().take(hint, 5, GROUP) is None

    @pytest.mark.parametrize("hint", UNKNOWN, ids=range(len(UNKNOWN)))
    @pytest.mark.parametrize("group", [GROUP, "", 'it\'s "quoted" *>.✓\x00'])
    def test_a_forged_hint_raises_no_error(self, hint: Hint, group: str) -> None:
        share = self.notifier().take(hint, 5, group)
        assert share is None or 0 <= share <= min(hint.count or 0, 5)
