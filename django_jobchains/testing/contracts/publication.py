"""Published hints arrive unchanged, and publishing does not delay the caller."""

from typing import Any
from uuid import uuid4

import pytest
from django.db import DatabaseError

from django_jobchains.notifications import chain_finished, job_scheduled, ownership_lost
from django_jobchains.testing.contracts.concurrency import at_once, until
from django_jobchains.testing.contracts.notifier_tests import MAIL, SHIP, NotifierTests, ReceivedHints

arriving = pytest.mark.usefixtures("_hints_arrive")


class PublicationTests(NotifierTests):
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
