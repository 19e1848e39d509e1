"""What every notifier does. Subclass it, say how one is made, and the tests run for it::

class TestMine(NotifierContract):
    def make(self) -> Notifier:
        return MyNotifier("default")
"""

import threading
from typing import Any

import pytest
from django.db import DatabaseError

from django_jobchains.notifications import EVERY, Hint, Listener, Notifier, job_scheduled
from django_jobchains.notifications.base import LOOK
from tests.worker.waiting import stays, until

SHIP, MAIL = job_scheduled("shop.ship"), job_scheduled("mail.send")


class Heard:
    """Hints, in the order in which they came."""

    def __init__(self) -> None:
        self.hints: list[Hint] = []

    def __call__(self, hint: Hint) -> None:
        self.hints.append(hint)

    def of_a_type(self) -> list[Hint]:
        return [hint for hint in self.hints if hint.subject != EVERY]


@pytest.mark.django_db(transaction=True)
class NotifierContract:
    #: Hints arrive as they were sent. Otherwise a listener hears of another process's commit, whatever it was.
    carries_hints = True
    #: Whether anybody is ever called.
    calls_back = True

    def make(self) -> Notifier:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def _closes_listeners(self) -> Any:
        self.listeners: list[Listener] = []
        yield
        for listener in self.listeners:
            listener.close()

    def listen(self, notifier: Notifier, heard: Heard) -> Listener:
        """Listens, and waits until hints arrive."""
        listener = notifier.listen(heard)
        self.listeners.append(listener)
        until(lambda: listener.is_alive)
        return listener

    def close(self, listener: Listener) -> None:
        self.listeners.remove(listener)
        listener.close()

    def test_a_new_listener_is_told_to_look(self) -> None:
        """Subscribe, then look: what was committed before is found."""
        if not self.calls_back:
            pytest.skip("polls")
        heard = Heard()
        self.listen(self.make(), heard)
        until(lambda: len(heard.hints) == len(LOOK))
        assert heard.hints == [*LOOK]

    def test_a_listener_hears_what_another_notifier_sends(self) -> None:
        if not self.carries_hints:
            pytest.skip("carries no hints")
        heard = Heard()
        self.listen(self.make(), heard)
        self.make().publish([SHIP, MAIL])
        until(lambda: set(heard.of_a_type()) == {SHIP, MAIL}, what=lambda: heard.hints)

    def test_every_kind_of_hint_arrives(self) -> None:
        if not self.carries_hints:
            pytest.skip("carries no hints")
        hints = [SHIP, Hint("chain_finished", "0"), Hint("ownership_lost", "1")]
        heard = Heard()
        self.listen(self.make(), heard)
        self.make().publish(hints)
        until(lambda: set(heard.of_a_type()) == set(hints), what=lambda: heard.hints)

    def test_names_arrive_unchanged(self) -> None:
        if not self.carries_hints:
            pytest.skip("carries no hints")
        names = ["a:b", "naïve.übung ✓", 'it\'s "quoted" \\ 100%', "x" * 200]
        heard = Heard()
        self.listen(self.make(), heard)
        self.make().publish([job_scheduled(name) for name in names])
        until(lambda: {hint.subject for hint in heard.of_a_type()} == set(names), what=lambda: heard.hints)

    def test_each_listener_hears(self) -> None:
        if not self.carries_hints:
            pytest.skip("carries no hints")
        first, second = Heard(), Heard()
        self.listen(self.make(), first)
        self.listen(self.make(), second)
        self.make().publish([SHIP])
        until(lambda: first.of_a_type() == second.of_a_type() == [SHIP])

    def test_publishing_nothing_is_allowed(self) -> None:
        self.make().publish([])

    def test_publishing_to_nobody_is_allowed(self) -> None:
        self.make().publish([SHIP])

    def test_a_closed_listener_hears_no_more(self) -> None:
        heard = Heard()
        listener = self.listen(self.make(), heard)
        self.close(listener)
        self.make().publish([SHIP])
        count = len(heard.hints)
        self.make().publish([SHIP])
        assert stays(lambda: len(heard.hints) == count, 0.2)

    def test_closing_frees_the_thread(self) -> None:
        before = set(threading.enumerate())
        notifier = self.make()
        listeners = [self.listen(notifier, Heard()) for _ in range(3)]
        for listener in listeners:
            self.close(listener)
        assert set(threading.enumerate()) == before

    def test_a_listener_that_was_never_connected_can_be_closed(self) -> None:
        self.make().listen(Heard()).close()

    @pytest.mark.parametrize("error", [DatabaseError("gone"), OSError("refused"), TimeoutError()])
    def test_publishing_does_not_raise(self, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
        def fails(hints: Any) -> None:
            raise error

        notifier = self.make()
        monkeypatch.setattr(notifier, "send", fails)
        notifier.publish([SHIP])

    def test_threads_may_publish_at_once(self) -> None:
        heard = Heard()
        notifier = self.make()
        self.listen(notifier, heard)
        errors: list[BaseException] = []

        def publish(number: int) -> None:
            from django.db import connections

            try:
                notifier.publish([job_scheduled(f"type.{number}.{step}") for step in range(10)])
            except BaseException as error:
                errors.append(error)
            finally:
                connections.close_all()

        threads = [threading.Thread(target=publish, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        if self.carries_hints:
            until(lambda: len(set(heard.of_a_type())) == 80, what=lambda: len(heard.hints))
