"""Wake budgets: the workers that take jobs of a hint share them, regardless of their order."""

import threading
from collections.abc import Callable

import pytest

from django_jobchains.notifications import Hint, Notifier, job_scheduled
from django_jobchains.testing.contracts.concurrency import at_once, until
from django_jobchains.testing.contracts.notifier_tests import NotifierTests, ReceivedHints

GROUP = "workers"
UNKNOWN = (
    Hint("job_scheduled", "shop.ship", 3, "f" * 16),
    Hint("job_scheduled", "shop.ship", 0, "1"),
    Hint("job_scheduled", "shop.ship", 999_999_999, "2"),
    Hint("job_scheduled", "shop.ship", 3, "../../*>$ {}\r\n\x00"),
    Hint("job_scheduled", 'it\'s "quoted" ✓', 3, "x" * 2_000),
    Hint("chain_finished", "*", 3, "3"),
)


class WakeBudgetTests(NotifierTests):
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
