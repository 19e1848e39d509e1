"""The contract of a notifier."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import count
from time import monotonic, process_time, sleep
from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError

from django_jobchains.notifications import (
    EVERY,
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
arriving = pytest.mark.usefixtures("_hints_arrive")


class ReceivedHints:
    """Records received hints in their order. An instance is a callback for ``listen``."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def __call__(self, hint: Hint) -> None:
        self.hints.append(hint)

    def of_a_type(self) -> list[Hint]:
        """Return the hints that name a subject."""
        return [hint for hint in self.hints if hint.subject != EVERY]

    def looks(self) -> list[Hint]:
        return [hint for hint in self.hints if hint.subject == EVERY]


class NotifierContract:
    """The tests that every notifier passes. Define how one is created::

        class TestMine(NotifierContract):
            def make(self) -> Notifier:
                return MyNotifier("default")

    The attributes ``carries_hints``, ``calls_back`` and ``has_budgets`` describe what it can do. ``interrupt`` stops
    its server. If it uses the database, mark the class ``pytest.mark.django_db(transaction=True)``.
    """

    #: Whether hints arrive as they were sent. False: after any commit, every listener is asked to query the database.
    carries_hints = True
    #: Whether listeners are ever called. False: workers poll.
    calls_back = True
    #: Whether ``take`` distributes the jobs of a hint. False: it may always return None, which means "unknown".
    has_budgets = False

    def make(self) -> Notifier:
        """Create a notifier. Tests create several, as several processes would."""
        raise NotImplementedError

    def interrupt(self) -> AbstractContextManager[None] | None:
        """Return a context manager that stops the server during its block. None skips the tests that need it."""
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

    def notifier(self) -> Notifier:
        """Create a notifier that is closed after the test."""
        self._notifiers.append(self.make())
        return self._notifiers[-1]

    def listen(self, notifier: Notifier, heard: Callable[[Hint], None], **options: Any) -> Listener:
        """Listen, and wait until the listener is connected."""
        listener = notifier.listen(heard, **options)
        self.listeners.append(listener)
        until(lambda: listener.is_alive)
        return listener

    def close(self, listener: Listener) -> None:
        self.listeners.remove(listener)
        listener.close()

    # Publishing: hints arrive unchanged, and the caller is not delayed

    @arriving
    def test_a_listener_receives_what_another_notifier_sends(self) -> None:
        heard = ReceivedHints()
        self.listen(self.notifier(), heard)
        self.notifier().publish([SHIP, MAIL])
        until(lambda: set(heard.of_a_type()) == {SHIP, MAIL}, what=lambda: heard.hints)

    @arriving
    def test_every_kind_of_hint_arrives(self) -> None:
        hints = [SHIP, chain_finished(uuid4()), ownership_lost(uuid4())]
        heard = ReceivedHints()
        self.listen(self.notifier(), heard)
        self.notifier().publish(hints)
        until(lambda: set(heard.of_a_type()) == set(hints), what=lambda: heard.hints)

    @arriving
    def test_names_arrive_unchanged(self) -> None:
        names = ["a:b", "naïve.übung ✓", 'it\'s "quoted" \\ 100%', "x" * 200]
        heard = ReceivedHints()
        self.listen(self.notifier(), heard)
        self.notifier().publish([job_scheduled(name) for name in names])
        until(lambda: {hint.subject for hint in heard.of_a_type()} == set(names), what=lambda: heard.hints)

    @arriving
    def test_counts_arrive_with_an_id_that_all_listeners_share(self) -> None:
        first, second = ReceivedHints(), ReceivedHints()
        self.listen(self.notifier(), first)
        self.listen(self.notifier(), second)
        self.notifier().publish([job_scheduled("shop.ship", 3), MAIL])
        until(lambda: set(first.of_a_type()) == set(second.of_a_type()) == {SHIP, MAIL})
        hints = [{hint: (hint.count, hint.id) for hint in heard.of_a_type()} for heard in (first, second)]
        assert hints[0] == hints[1]
        count, id_ = hints[0][SHIP]
        assert count == 3
        assert 1 <= len(id_) <= 16
        assert int(id_, 16) >= 0
        assert hints[0][MAIL] == (None, "")

    @arriving
    def test_each_publication_has_its_own_id(self) -> None:
        heard = ReceivedHints()
        self.listen(self.notifier(), heard)
        for _ in range(2):
            self.notifier().publish([job_scheduled("shop.ship", 1)])
        until(lambda: len(heard.of_a_type()) == 2)
        assert len({hint.id for hint in heard.of_a_type()}) == 2

    def test_publishing_nothing_is_allowed(self) -> None:
        self.notifier().publish([])

    def test_publishing_without_listeners_is_allowed(self) -> None:
        self.notifier().publish([SHIP])

    @pytest.mark.parametrize("error", [DatabaseError("gone"), OSError("refused"), TimeoutError()])
    def test_publishing_does_not_raise(self, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(hints: Any) -> None:
            raise error

        notifier = self.notifier()
        monkeypatch.setattr(notifier, "send", fails)
        notifier.publish([SHIP])

    def test_threads_may_publish_at_once(self) -> None:
        heard = ReceivedHints()
        notifier = self.notifier()
        self.listen(notifier, heard)

        def publish(number: int) -> None:
            notifier.publish([job_scheduled(f"type.{number}.{step}") for step in range(10)])

        at_once([lambda number=number: publish(number) for number in range(8)])  # type: ignore[misc]
        if self.carries_hints:
            until(lambda: len(set(heard.of_a_type())) == 80, what=lambda: len(heard.hints))

    def test_a_closed_notifier_can_be_used_again(self) -> None:
        notifier, heard = self.notifier(), ReceivedHints()
        notifier.publish([MAIL])
        for _ in range(2):
            notifier.close()
        self.listen(self.notifier(), heard)
        notifier.publish([SHIP])
        if self.carries_hints:
            until(lambda: SHIP in heard.hints, what=lambda: heard.hints)

    def test_an_unused_notifier_can_be_closed(self) -> None:
        self.notifier().close()

    # Listening: a new listener is asked to query the database, and listeners of a process share a connection

    @pytest.fixture
    def _calls_back(self) -> None:
        if not self.calls_back:
            pytest.skip("polls")

    @pytest.mark.usefixtures("_calls_back")
    def test_a_new_listener_is_asked_to_query(self) -> None:
        """It queries after it has subscribed, so that earlier commits are found."""
        heard = ReceivedHints()
        self.listen(self.notifier(), heard)
        until(lambda: set(heard.hints) == set(RESYNC_HINTS), what=lambda: heard.hints)

    @pytest.mark.usefixtures("_calls_back")
    def test_a_second_listener_of_a_process_shares_the_connection_and_is_asked_to_query(self) -> None:
        notifier, first, second = self.notifier(), ReceivedHints(), ReceivedHints()
        self.listen(notifier, first)
        until(lambda: set(first.hints) == set(RESYNC_HINTS))
        threads = set(threading.enumerate())
        self.listen(notifier, second)
        until(lambda: set(second.hints) == set(RESYNC_HINTS), what=lambda: second.hints)
        assert set(threading.enumerate()) <= threads

    @pytest.mark.usefixtures("_calls_back")
    def test_closing_one_listener_keeps_the_others(self) -> None:
        notifier, heard = self.notifier(), ReceivedHints()
        left = self.listen(notifier, ReceivedHints())
        stayed = self.listen(notifier, heard)
        self.close(left)
        assert stays(lambda: stayed.is_alive, 0.2)
        self.notifier().publish([SHIP])
        if self.carries_hints:
            until(lambda: SHIP in heard.hints, what=lambda: heard.hints)

    @pytest.mark.usefixtures("_calls_back")
    def test_a_listener_after_the_last_was_closed_receives_hints(self) -> None:
        notifier, heard = self.notifier(), ReceivedHints()
        self.close(self.listen(notifier, ReceivedHints()))
        self.listen(notifier, heard)
        until(lambda: set(heard.hints) == set(RESYNC_HINTS), what=lambda: heard.hints)
        self.notifier().publish([SHIP])
        if self.carries_hints:
            until(lambda: SHIP in heard.hints, what=lambda: heard.hints)

    @arriving
    def test_each_listener_receives_hints(self) -> None:
        heard = [ReceivedHints(), ReceivedHints(), ReceivedHints()]
        shared = self.notifier()
        for notifier, callback in zip((shared, shared, self.notifier()), heard, strict=True):
            self.listen(notifier, callback)
        self.notifier().publish([SHIP])
        until(lambda: all(one.of_a_type() == [SHIP] for one in heard), what=lambda: [one.hints for one in heard])

    @arriving
    def test_only_the_requested_kinds_are_received(self) -> None:
        notifier, jobs, chains = self.notifier(), ReceivedHints(), ReceivedHints()
        finished = chain_finished(uuid4())
        self.listen(notifier, jobs, kinds=["job_scheduled"])
        self.listen(notifier, chains, kinds=["chain_finished"])
        until(lambda: jobs.hints == [job_scheduled(EVERY)])
        until(lambda: set(chains.hints) == {chain_finished(EVERY)}, what=lambda: chains.hints)
        self.notifier().publish([SHIP, finished])
        until(lambda: jobs.of_a_type() and chains.of_a_type())
        assert (jobs.of_a_type(), chains.of_a_type()) == ([SHIP], [finished])

    @arriving
    def test_kinds_requested_later_are_received_from_then_on(self) -> None:
        notifier, jobs, both = self.notifier(), ReceivedHints(), ReceivedHints()
        wanted: tuple[HintKind, ...] = ("job_scheduled", "chain_finished")
        self.listen(notifier, jobs, kinds=["job_scheduled"])
        later = self.listen(notifier, both, kinds=wanted)
        until(lambda: chain_finished(EVERY) in both.hints, what=lambda: both.hints)
        hint = chain_finished(uuid4())
        self.notifier().publish([hint])
        until(lambda: hint in both.hints, what=lambda: both.hints)
        self.close(later)
        self.notifier().publish([SHIP])
        until(lambda: SHIP in jobs.hints, what=lambda: jobs.hints)

    @arriving
    def test_an_error_in_a_callback_does_not_affect_others(self, caplog: pytest.LogCaptureFixture) -> None:
        def fails(hint: Hint) -> None:
            raise RuntimeError("a bug of somebody else")

        notifier, heard = self.notifier(), ReceivedHints()
        for callback in (fails, heard):
            self.listen(notifier, callback)
        for hint in (SHIP, MAIL):
            self.notifier().publish([hint])
        until(lambda: {SHIP, MAIL} <= set(heard.hints), what=lambda: heard.hints)
        assert "a bug of somebody else" in caplog.text

    @arriving
    def test_threads_may_listen_at_once(self) -> None:
        notifier = self.notifier()
        heard = [ReceivedHints() for _ in range(6)]
        self.listeners += at_once([lambda one=one: notifier.listen(one) for one in heard])  # type: ignore[misc]
        until(lambda: all(listener.is_alive for listener in self.listeners))
        self.notifier().publish([SHIP])
        until(lambda: all(one.of_a_type() == [SHIP] for one in heard), what=lambda: [one.hints for one in heard])

    @pytest.mark.usefixtures("_calls_back")
    def test_an_idle_listener_uses_almost_no_cpu(self) -> None:
        heard = ReceivedHints()
        self.listen(self.notifier(), heard)
        until(lambda: set(heard.hints) == set(RESYNC_HINTS), what=lambda: heard.hints)
        started, used_before = monotonic(), process_time()
        sleep(IDLE_SECONDS)
        assert process_time() - used_before < IDLE_CORES * (monotonic() - started)

    def test_a_closed_listener_receives_nothing(self) -> None:
        heard = ReceivedHints()
        self.close(self.listen(self.notifier(), heard))
        heard_before = len(heard.hints)
        for _ in range(2):
            self.notifier().publish([SHIP])
        assert stays(lambda: len(heard.hints) == heard_before, 0.2)

    def test_a_listener_may_be_closed_twice(self) -> None:
        listener = self.listen(self.notifier(), ReceivedHints())
        for _ in range(2):
            listener.close()

    @arriving
    def test_a_callback_may_close_its_listener(self) -> None:
        heard: list[Hint] = []
        closed = threading.Event()

        def close(hint: Hint) -> None:
            if hint == SHIP:
                heard.append(hint)
                listener.close()
                closed.set()

        listener: Listener = self.listen(self.notifier(), close)
        self.notifier().publish([SHIP])
        assert closed.wait(HANGING_SECONDS), "It waits for itself."
        self.notifier().publish([SHIP])
        assert stays(lambda: heard == [SHIP], 0.2)

    def test_closing_ends_the_threads(self) -> None:
        before = set(threading.enumerate())
        notifier = self.notifier()
        listeners = [self.listen(notifier, ReceivedHints()) for _ in range(3)]
        notifier.publish([SHIP])
        for listener in listeners:
            self.close(listener)
        notifier.close()
        until(lambda: set(threading.enumerate()) <= before, what=threading.enumerate)

    def test_a_listener_that_was_never_connected_can_be_closed(self) -> None:
        self.notifier().listen(ReceivedHints()).close()

    def test_after_an_interruption_listeners_query_and_receive_hints(self) -> None:
        """Hints published during the interruption may be lost. Publishing neither waits nor raises an error."""
        sender, heard = self.notifier(), ReceivedHints()
        self.listen(self.notifier(), heard)
        sender.publish([SHIP])
        until(lambda: SHIP in heard.hints or not self.carries_hints)
        interruption = self.interrupt()
        if interruption is None:
            pytest.skip("there is nothing to interrupt")
        with interruption:
            heard.hints.clear()
            for number in range(3):
                started = monotonic()
                sender.publish([job_scheduled(f"lost.{number}", 1)])
                assert monotonic() - started < HANGING_SECONDS
        until(lambda: set(RESYNC_HINTS) <= set(heard.hints), BACK_SECONDS, lambda: heard.hints)
        numbers = count()

        def arrives() -> bool:
            sender.publish([job_scheduled(f"again.{next(numbers)}")])
            return any(hint.subject.startswith("again.") for hint in heard.hints)

        until(lambda: not self.carries_hints or arrives(), BACK_SECONDS, lambda: heard.hints)

    # Wake budgets: the workers that take jobs of a hint share them, regardless of their order

    @pytest.fixture
    def _shares_out(self) -> None:
        if not self.has_budgets:
            pytest.skip("The notifier has no budgets.")

    def hint_received(self, count: int) -> tuple[Notifier, Hint]:
        """Return a listening notifier, and the hint about this many jobs that it received."""
        (notifier,), hint = self.hint_received_by(1, count)
        return notifier, hint

    def hint_received_by(self, processes: int, count: int) -> tuple[list[Notifier], Hint]:
        """Return several listening notifiers, and the hint that all of them received."""
        notifiers = {self.notifier(): ReceivedHints() for _ in range(processes)}
        for notifier, heard in notifiers.items():
            self.listen(notifier, heard)
        self.notifier().publish([job_scheduled("shop.ship", count)])
        hints = {hint.id: hint for heard in notifiers.values() for hint in until(heard.of_a_type)}
        (hint,) = hints.values()
        return list(notifiers), hint

    @pytest.mark.usefixtures("_shares_out")
    def test_workers_that_ask_share_the_jobs(self) -> None:
        notifier, hint = self.hint_received(5)
        assert [notifier.take(hint, most, GROUP) for most in (2, 1, 10, 1)] == [2, 1, 2, 0]

    @pytest.mark.usefixtures("_shares_out")
    def test_processes_share_a_budget(self) -> None:
        (first, second), hint = self.hint_received_by(2, 3)
        assert [one.take(hint, 2, GROUP) for one in (first, second, first)] == [2, 1, 0]

    @pytest.mark.usefixtures("_shares_out")
    def test_simultaneous_requests_share_the_jobs(self) -> None:
        notifiers, hint = self.hint_received_by(2, 5)
        askers = notifiers * 4
        taken = at_once([lambda asked=asked: asked.take(hint, 1, GROUP) for asked in askers])  # type: ignore[misc]
        assert sorted(taken, key=str) == [0, 0, 0, 1, 1, 1, 1, 1]

    @pytest.mark.usefixtures("_shares_out")
    def test_a_callback_may_take_from_the_budget(self) -> None:
        notifier, taken, done = self.notifier(), list[int | None](), threading.Event()

        def ask(hint: Hint) -> None:
            if hint.count is not None:
                taken.extend(notifier.take(hint, 2, GROUP) for _ in range(2))
                done.set()

        self.listen(notifier, ask)
        self.notifier().publish([job_scheduled("shop.ship", 3)])
        until(done.is_set)
        assert taken == [2, 1]

    @pytest.mark.usefixtures("_shares_out")
    def test_each_group_has_a_budget(self) -> None:
        """Each group of workers serves other queues or types, so the jobs of the other group do not count."""
        notifier, hint = self.hint_received(2)
        groups = (GROUP, "other", "with spaces, * and ✓", "x" * 300)
        assert [notifier.take(hint, 5, group) for group in groups] == [2] * len(groups)
        assert [notifier.take(hint, 5, group) for group in groups] == [0] * len(groups)

    @pytest.mark.usefixtures("_shares_out")
    def test_each_hint_has_a_budget(self) -> None:
        hints = [self.hint_received(2) for _ in range(2)]
        assert [notifier.take(hint, 5, GROUP) for notifier, hint in hints] == [2, 2]

    @pytest.mark.usefixtures("_shares_out")
    def test_a_request_for_no_jobs_takes_none(self) -> None:
        notifier, hint = self.hint_received(2)
        assert [notifier.take(hint, most, GROUP) for most in (0, 5)] == [0, 2]

    @pytest.mark.usefixtures("_shares_out")
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
        assert is_share(lambda: self.notifier().take(hint, 5, group), min(hint.count or 0, 5))


def is_share(take: Callable[[], int | None], most: int) -> bool:
    share = take()
    return share is None or 0 <= share <= most
