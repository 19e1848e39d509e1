"""A new listener is asked to query the database. Listeners of a process share one connection and release it."""

import threading
from itertools import count
from time import monotonic, process_time, sleep
from uuid import uuid4

import pytest

from django_jobchains.notifications import EVERY, Hint, HintKind, Listener, chain_finished, job_scheduled
from django_jobchains.notifications.hints import RESYNC_HINTS
from django_jobchains.testing.contracts.concurrency import at_once, stays, until
from django_jobchains.testing.contracts.notifier_tests import MAIL, SHIP, NotifierTests, ReceivedHints

arriving = pytest.mark.usefixtures("_hints_arrive")

#: The time in which a listener reconnects after its server is available again.
BACK_SECONDS = 60.0
#: The longest time that publishing may take in any state of the server, because an enqueue waits for it.
HANGING_SECONDS = 10.0
#: How long the CPU time of an idle listener is measured.
IDLE_SECONDS = 2.0
#: The limit of CPU cores that an idle listener uses. A loop that does not wait uses a whole core.
IDLE_CORES = 0.1


class DeliveryTests(NotifierTests):
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
