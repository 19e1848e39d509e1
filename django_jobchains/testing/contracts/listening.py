"""Who listens is told to look, shares one listener with the others of its process, and frees it."""

import threading
from itertools import count
from time import monotonic, process_time, sleep
from uuid import uuid4

import pytest

from django_jobchains.notifications import EVERY, Hint, HintKind, Listener, chain_finished, job_scheduled
from django_jobchains.notifications.hints import LOOK
from django_jobchains.testing.contracts.crews import at_once
from django_jobchains.testing.contracts.hearing import MAIL, SHIP, Heard, NotifierTests
from django_jobchains.testing.contracts.waiting import stays, until

arriving = pytest.mark.usefixtures("_hints_arrive")

#: A listener is back so long after its server is.
BACK_SECONDS = 60.0
#: Whoever publishes waits no longer, whatever the server does. An enqueue waits for it: far too long, but no hang.
HANGING_SECONDS = 10.0
#: For how long the CPU time of an idle listener is measured.
IDLE_SECONDS = 2.0
#: Cores that the process of an idle listener uses at most. A loop that does not wait uses a whole one.
IDLE_CORES = 0.1


class Listening(NotifierTests):
    @pytest.fixture
    def _calls_back(self) -> None:
        if not self.calls_back:
            pytest.skip("polls")

    @pytest.mark.usefixtures("_calls_back")
    def test_a_new_listener_is_told_to_look(self) -> None:
        """Subscribe, then look: what was committed before is found."""
        heard = Heard()
        self.listen(self.notifier(), heard)
        until(lambda: set(heard.hints) == set(LOOK), what=lambda: heard.hints)

    @pytest.mark.usefixtures("_calls_back")
    def test_a_second_in_a_process_shares_the_listener_and_is_told_to_look(self) -> None:
        notifier, first, second = self.notifier(), Heard(), Heard()
        self.listen(notifier, first)
        until(lambda: set(first.hints) == set(LOOK))
        threads = set(threading.enumerate())
        self.listen(notifier, second)
        until(lambda: set(second.hints) == set(LOOK), what=lambda: second.hints)
        assert set(threading.enumerate()) <= threads

    @pytest.mark.usefixtures("_calls_back")
    def test_one_who_leaves_takes_the_listener_from_nobody(self) -> None:
        notifier, heard = self.notifier(), Heard()
        left = self.listen(notifier, Heard())
        stayed = self.listen(notifier, heard)
        self.close(left)
        assert stays(lambda: stayed.is_alive, 0.2)
        self.notifier().publish([SHIP])
        if self.carries_hints:
            until(lambda: SHIP in heard.hints, what=lambda: heard.hints)

    @pytest.mark.usefixtures("_calls_back")
    def test_whoever_comes_after_the_last_has_left_hears_again(self) -> None:
        notifier, heard = self.notifier(), Heard()
        self.close(self.listen(notifier, Heard()))
        self.listen(notifier, heard)
        until(lambda: set(heard.hints) == set(LOOK), what=lambda: heard.hints)
        self.notifier().publish([SHIP])
        if self.carries_hints:
            until(lambda: SHIP in heard.hints, what=lambda: heard.hints)

    @arriving
    def test_each_listener_hears(self) -> None:
        heard = [Heard(), Heard(), Heard()]
        shared = self.notifier()
        for notifier, callback in zip((shared, shared, self.notifier()), heard, strict=True):
            self.listen(notifier, callback)
        self.notifier().publish([SHIP])
        until(lambda: all(one.of_a_type() == [SHIP] for one in heard), what=lambda: [one.hints for one in heard])

    @arriving
    def test_only_the_kinds_that_are_wanted_are_heard(self) -> None:
        notifier, jobs, chains = self.notifier(), Heard(), Heard()
        finished = chain_finished(uuid4())
        self.listen(notifier, jobs, kinds=["job_scheduled"])
        self.listen(notifier, chains, kinds=["chain_finished"])
        until(lambda: jobs.hints == [job_scheduled(EVERY)])
        until(lambda: set(chains.hints) == {chain_finished(EVERY)}, what=lambda: chains.hints)
        self.notifier().publish([SHIP, finished])
        until(lambda: jobs.of_a_type() and chains.of_a_type())
        assert (jobs.of_a_type(), chains.of_a_type()) == ([SHIP], [finished])

    @arriving
    def test_kinds_that_somebody_wants_later_are_heard_from_then_on(self) -> None:
        notifier, jobs, both = self.notifier(), Heard(), Heard()
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
    def test_an_error_of_one_who_hears_is_its_own(self, caplog: pytest.LogCaptureFixture) -> None:
        def fails(hint: Hint) -> None:
            raise RuntimeError("a bug of somebody else")

        notifier, heard = self.notifier(), Heard()
        for callback in (fails, heard):
            self.listen(notifier, callback)
        for hint in (SHIP, MAIL):
            self.notifier().publish([hint])
        until(lambda: {SHIP, MAIL} <= set(heard.hints), what=lambda: heard.hints)
        assert "a bug of somebody else" in caplog.text

    @arriving
    def test_threads_may_listen_at_once(self) -> None:
        notifier = self.notifier()
        heard = [Heard() for _ in range(6)]
        self.listeners += at_once([lambda one=one: notifier.listen(one) for one in heard])  # type: ignore[misc]
        until(lambda: all(listener.is_alive for listener in self.listeners))
        self.notifier().publish([SHIP])
        until(lambda: all(one.of_a_type() == [SHIP] for one in heard), what=lambda: [one.hints for one in heard])

    @pytest.mark.usefixtures("_calls_back")
    def test_an_idle_listener_uses_about_no_cpu(self) -> None:
        heard = Heard()
        self.listen(self.notifier(), heard)
        until(lambda: set(heard.hints) == set(LOOK), what=lambda: heard.hints)
        started, used_before = monotonic(), process_time()
        sleep(IDLE_SECONDS)
        assert process_time() - used_before < IDLE_CORES * (monotonic() - started)

    def test_a_closed_listener_hears_no_more(self) -> None:
        heard = Heard()
        self.close(self.listen(self.notifier(), heard))
        heard_before = len(heard.hints)
        for _ in range(2):
            self.notifier().publish([SHIP])
        assert stays(lambda: len(heard.hints) == heard_before, 0.2)

    def test_a_listener_may_be_closed_twice(self) -> None:
        listener = self.listen(self.notifier(), Heard())
        for _ in range(2):
            listener.close()

    @arriving
    def test_a_listener_may_be_closed_by_who_hears(self) -> None:
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

    def test_closing_frees_the_threads(self) -> None:
        before = set(threading.enumerate())
        notifier = self.notifier()
        listeners = [self.listen(notifier, Heard()) for _ in range(3)]
        notifier.publish([SHIP])
        for listener in listeners:
            self.close(listener)
        notifier.close()
        until(lambda: set(threading.enumerate()) <= before, what=threading.enumerate)

    def test_a_listener_that_was_never_connected_can_be_closed(self) -> None:
        self.notifier().listen(Heard()).close()

    def test_after_an_interruption_whoever_listens_looks_and_hears(self) -> None:
        """What was published meanwhile may be lost; whoever published was neither held up nor told."""
        sender, heard = self.notifier(), Heard()
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
        until(lambda: set(LOOK) <= set(heard.hints), BACK_SECONDS, lambda: heard.hints)
        numbers = count()

        def arrives() -> bool:
            sender.publish([job_scheduled(f"again.{next(numbers)}")])
            return any(hint.subject.startswith("again.") for hint in heard.hints)

        until(lambda: not self.carries_hints or arrives(), BACK_SECONDS, lambda: heard.hints)
