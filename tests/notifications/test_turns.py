"""Whose turn it is to look: a share of the budget, or the place in an order that all come to by themselves."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from django_jobchains.notifications import EVERY, Hint, Notifier, NullNotifier
from django_jobchains.store import Beat, PresentWorker
from django_jobchains.worker.turns import LATE_FACTOR, LATE_SECONDS, Order, Turns, group_of

TYPE = "shop.ship"
BEAT = Beat("w0", "host", 1, "1", 10, 0, 0, None, (TYPE,), False, 1.0, 10.0)


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobchains.worker.turns.ASK_SECONDS", 0.0)


class Budget(Notifier):
    """Gives what it has."""

    def __init__(self, share: int | None) -> None:
        super().__init__("default")
        self.share = share
        self.asked: list[tuple[int, str]] = []

    def take(self, hint: Hint, most: int, group: str) -> int | None:
        self.asked.append((most, group))
        return self.share


def hint(count: int | None = 1, id: int = 0, subject: str = TYPE) -> Hint:
    return Hint("job_scheduled", subject, count, f"{id:x}" if count else "")


def turns_of(
    notifier: Notifier, *, free: int = 10, is_narrow: bool = False, look: Callable[[], None] = lambda: None
) -> Turns:
    return Turns(
        notifier,
        group="g",
        poll_seconds=60,
        free=lambda type_name: free,
        is_narrow=lambda: is_narrow,
        look=look,
    )


def present(*beats: Beat, silent_seconds: float = 0.0) -> list[PresentWorker]:
    time: Any = None
    return [PresentWorker(beat, time, time, silent_seconds) for beat in beats]


def crew(count: int, **changes: Any) -> list[Beat]:
    return [replace(BEAT, worker=f"w{number:02}", **changes) for number in range(count)]


def seconds_of_all(workers: Sequence[PresentWorker], hint: Hint) -> list[float | None]:
    seconds = []
    for worker in workers:
        turns = turns_of(NullNotifier("default"))
        turns.place(worker.beat.worker, workers)
        seconds.append(turns.seconds_until(hint))
    return seconds


@pytest.mark.parametrize(("share", "seconds"), [(1, 0.0), (0, None)])
def test_a_share_of_the_budget_is_a_reason_to_look_and_none_is_not(share: int, seconds: float | None) -> None:
    budget = Budget(share)
    assert turns_of(budget, free=7).seconds_until(hint(3)) == seconds
    assert budget.asked == [(7, "g")]


@pytest.mark.parametrize(
    ("said", "options"),
    [
        (hint(None), {}),
        (hint(1, subject=EVERY), {}),
        (hint(1), {"free": 0}),
        (hint(1), {"is_narrow": True}),
    ],
)
def test_who_cannot_tell_how_much_it_may_do_looks_and_takes_nothing(said: Hint, options: dict[str, Any]) -> None:
    budget = Budget(0)
    assert turns_of(budget, **options).seconds_until(said) == 0.0
    assert budget.asked == []


def test_a_worker_that_is_alone_asks_nobody() -> None:
    budget = Budget(0)
    turns = turns_of(budget)
    turns.place("w00", present(*crew(1)))
    assert turns.seconds_until(hint()) == 0.0
    assert budget.asked == []


def test_hints_that_follow_closely_are_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_jobchains.worker.turns.ASK_SECONDS", 10.0)
    budget = Budget(0)
    turns = turns_of(budget)
    assert [turns.seconds_until(hint(id=number)) for number in range(3)] == [None, 0.0, 0.0]


def test_until_it_has_a_place_a_worker_looks_at_once() -> None:
    assert turns_of(NullNotifier("default")).seconds_until(hint()) == 0.0


@pytest.mark.parametrize(("jobs", "slots", "at_once"), [(1, 10, 2), (10, 10, 2), (11, 10, 3), (7, 1, 8), (999, 10, 50)])
def test_as_many_look_at_once_as_the_jobs_need_and_one_more(jobs: int, slots: int, at_once: int) -> None:
    seconds = seconds_of_all(present(*crew(50, slots=slots)), hint(jobs, id=123))
    assert seconds.count(0.0) == at_once


def test_the_others_look_later_and_later_or_at_their_poll() -> None:
    seconds = seconds_of_all(present(*crew(50)), hint(1, id=7))
    late = sorted(time for time in seconds if time)
    assert late == [LATE_SECONDS * LATE_FACTOR**number for number in range(len(late))]
    assert late[-1] < 60 <= LATE_FACTOR * late[-1]
    assert seconds.count(None) == 50 - 2 - len(late)


def test_the_order_begins_with_another_for_each_hint() -> None:
    workers = present(*crew(10))
    first = Counter(seconds_of_all(workers, hint(id=number)).index(0.0) for number in range(1, 9))
    assert len(first) == 8


@pytest.mark.parametrize(
    "changes", [{"busy": 10}, {"is_stopping": True}, {"queues": ("mail",)}, {"type_names": ("other",)}]
)
def test_who_cannot_take_the_job_has_no_place(changes: dict[str, Any]) -> None:
    idle, other = replace(BEAT, worker="a"), replace(BEAT, worker="b", **changes)
    turns = turns_of(NullNotifier("default"))
    turns.place("a", present(idle, other))
    assert turns.is_alone


def test_who_was_not_heard_of_has_no_place() -> None:
    turns = turns_of(NullNotifier("default"))
    turns.place("a", present(replace(BEAT, worker="a")) + present(replace(BEAT, worker="b"), silent_seconds=25))
    assert turns.is_alone


def test_a_worker_whose_row_is_gone_looks_at_once() -> None:
    turns = turns_of(NullNotifier("default"))
    turns.place("w00", present(*crew(9)))
    turns.place("w00", present(*crew(9)[1:]))
    assert turns.seconds_until(hint(id=5)) == 0.0


def test_jobs_that_were_hinted_since_the_last_heartbeat_may_have_filled_those_in_front() -> None:
    """Or the only one that is still idle would leave every job to those that are not."""
    workers = present(*crew(50, slots=1))
    turns = turns_of(NullNotifier("default"))
    turns.place("w25", workers)
    for number in range(48):
        turns.heard(hint(id=number))
    assert [turns.seconds_until(hint(id=number)) for number in (0, 26, 40)] == [0.0] * 3
    turns.place("w25", workers)
    assert turns.seconds_until(hint(id=26)) is None


def test_short_jobs_fill_nobody_for_long() -> None:
    turns = turns_of(NullNotifier("default"))
    turns.place("w25", present(*crew(50, slots=1)))
    turns.ran(TYPE, 0.002)
    for number in range(1_000):
        turns.heard(hint(id=number))
    assert turns.seconds_until(hint(id=26)) is None


def test_a_long_one_among_short_ones_counts_for_a_while() -> None:
    turns = turns_of(NullNotifier("default"))
    turns.place("w25", present(*crew(50, slots=1)))
    for seconds in (*[0.002] * 100, 30.0, *[0.002] * 10):
        turns.ran(TYPE, seconds)
    for number in range(50):
        turns.heard(hint(id=number))
    assert turns.seconds_until(hint(id=26)) == 0.0


def test_what_was_left_to_others_is_looked_for_when_they_turn_out_to_be_busy() -> None:
    looked: list[bool] = []
    turns = turns_of(NullNotifier("default"), look=lambda: looked.append(True))
    turns.place("w25", present(*crew(50)))
    assert turns.seconds_until(hint(id=50)) is None
    turns.place("w25", present(*crew(50)))
    assert looked == []
    assert turns.seconds_until(hint(id=50)) is None
    turns.place("w25", present(*crew(25, busy=10), *crew(50)[25:]))
    assert looked == [True]
    turns.place("w25", present(*crew(25, busy=10), *crew(50)[25:]))
    assert looked == [True], "once is enough"


def test_so_is_what_others_took_from_the_budget() -> None:
    looked: list[bool] = []
    turns = turns_of(Budget(0), look=lambda: looked.append(True))
    turns.place("w00", present(*crew(2)))
    assert turns.seconds_until(hint()) is None
    turns.place("w00", present(*crew(2)))
    assert looked == [True]


def test_as_many_are_in_front_as_have_the_free_slots() -> None:
    order = Order(place=3, free=(1, 4, 2, 5))
    assert [order.late(0, jobs) for jobs in (1, 2, 5, 6, 7, 8, 100)] == [2, 1, 1, 0, 0, -1, -1]
    assert [order.late(3, jobs) for jobs in (1, 6)] == [-1, -2]
    assert [order.late(1, 6), order.late(7, 1)] == [0, -1]


def test_a_group_is_what_a_worker_works_for() -> None:
    same = group_of(["db"], ["b", "a"], ["x", "y"])
    assert same == group_of(["db"], ["a", "b"], ["y", "x"])
    others = [
        (["db2"], ["a", "b"], ["x", "y"]),
        (["db"], None, ["x", "y"]),
        (["db"], ["a"], ["x", "y"]),
        (["db"], ["a", "b"], ["x"]),
    ]
    assert len({same, *(group_of(*other) for other in others)}) == 5
