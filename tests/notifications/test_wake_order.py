"""Which workers query because of a hint: by their share of a budget, or by an order that all of them compute."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from django_jobchains.notifications import EVERY, Hint, Notifier, NullNotifier
from django_jobchains.store.workers import Beat
from django_jobchains.worker.wake_order import LATE_FACTOR, LATE_SECONDS, PeerOrder, WakeOrder, group_of
from tests.support.worker_rows import facts_of
from tests.support.workers import context_for

TYPE = "shop.ship"
BEAT = Beat("w0", "host", 1, "1", 10, 0, 0, None, (TYPE,), False, 1.0, 10.0)


@pytest.fixture(autouse=True)
def _no_minimum_interval(monkeypatch):
    monkeypatch.setattr("django_jobchains.worker.wake_order.MIN_ASK_SECONDS", 0.0)


class FixedBudget(Notifier):
    """Gives each worker the same share, and records the requests."""

    def __init__(self, share):
        super().__init__("default")
        self.share = share
        self.requests = []

    def take(self, hint, limit, group):
        self.requests.append((limit, group))
        return self.share


def hint(count=1, id=0, subject=TYPE):
    return Hint("job_scheduled", subject, count, f"{id:x}" if count else "")


def order_with(notifier, *, free=10, has_limits=False, average_seconds=None):
    lane = SimpleNamespace(free=lambda: free)
    context = context_for(poll_seconds=60)
    context.queues.has_limits = has_limits
    context.counter.average_seconds = {} if average_seconds is None else {TYPE: average_seconds}
    order = WakeOrder(context, notifier, {TYPE: lane})
    order.group = "g"
    return order


def present(*beats, silent_seconds=0.0):
    return [facts_of(beat, silent_seconds) for beat in beats]


def beats(count, **changes):
    return [replace(BEAT, id=f"w{number:02}", **changes) for number in range(count)]


def query_delays_of(workers, hint):
    seconds = []
    for worker in workers:
        order = order_with(NullNotifier("default"))
        order.update(worker.id, workers)
        seconds.append(order.seconds_until(hint))
    return seconds


@pytest.mark.parametrize(("share", "seconds"), [(1, 0.0), (0, None)])
def test_worker_queries_only_if_it_gets_a_share_of_the_budget(share, seconds):
    budget = FixedBudget(share)
    assert order_with(budget, free=7).seconds_until(hint(3)) == seconds
    assert budget.requests == [(7, "g")]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        (hint(None), {}),
        (hint(1, subject=EVERY), {}),
        (hint(1), {"free": 0}),
        (hint(1), {"has_limits": True}),
    ],
)
def test_worker_queries_without_a_budget_if_its_demand_is_unknown(given, options):
    budget = FixedBudget(0)
    assert order_with(budget, **options).seconds_until(given) == 0.0
    assert budget.requests == []


def test_only_worker_does_not_use_the_budget():
    budget = FixedBudget(0)
    order = order_with(budget)
    order.update("w00", present(*beats(1)))
    assert order.seconds_until(hint()) == 0.0
    assert budget.requests == []


def test_stopping_worker_ignores_hints():
    budget = FixedBudget(1)
    order = order_with(budget)
    order._wake.accepts_hints = False
    order.on_hint(hint())
    assert (budget.requests, order._wake._is_set) == ([], False)
    order._wake.accepts_hints = True
    order.on_hint(hint())
    assert (budget.requests, order._wake._is_set) == ([(10, "g")], True)


def test_hints_that_follow_closely_do_not_use_the_budget(monkeypatch):
    monkeypatch.setattr("django_jobchains.worker.wake_order.MIN_ASK_SECONDS", 10.0)
    budget = FixedBudget(0)
    order = order_with(budget)
    assert [order.seconds_until(hint(id=number)) for number in range(3)] == [None, 0.0, 0.0]


def test_worker_without_a_position_queries_at_once():
    assert order_with(NullNotifier("default")).seconds_until(hint()) == 0.0


@pytest.mark.parametrize(
    ("jobs", "slots", "count_at_once"), [(1, 10, 2), (10, 10, 2), (11, 10, 3), (7, 1, 8), (999, 10, 50)]
)
def test_as_many_workers_query_at_once_as_the_jobs_need_and_one_more(jobs, slots, count_at_once):
    seconds = query_delays_of(present(*beats(50, slots=slots)), hint(jobs, id=123))
    assert seconds.count(0.0) == count_at_once


def test_other_workers_query_later_and_later_or_at_their_poll():
    seconds = query_delays_of(present(*beats(50)), hint(1, id=7))
    late = sorted(time for time in seconds if time)
    assert late == [LATE_SECONDS * LATE_FACTOR**number for number in range(len(late))]
    assert late[-1] < 60 <= LATE_FACTOR * late[-1]
    assert seconds.count(None) == 50 - 2 - len(late)


def test_order_begins_with_another_worker_for_each_hint():
    workers = present(*beats(10))
    first = Counter(query_delays_of(workers, hint(id=number)).index(0.0) for number in range(1, 9))
    assert len(first) == 8


@pytest.mark.parametrize(
    "changes", [{"busy": 10}, {"is_stopping": True}, {"queues": ("mail",)}, {"type_names": ("other",)}]
)
def test_worker_that_cannot_take_the_job_has_no_position(changes):
    idle, other = replace(BEAT, id="a"), replace(BEAT, id="b", **changes)
    order = order_with(NullNotifier("default"))
    order.update("a", present(idle, other))
    assert order.is_alone


def test_worker_without_a_recent_heartbeat_has_no_position():
    order = order_with(NullNotifier("default"))
    order.update("a", present(replace(BEAT, id="a")) + present(replace(BEAT, id="b"), silent_seconds=25))
    assert order.is_alone


def test_worker_whose_row_was_deleted_queries_at_once():
    order = order_with(NullNotifier("default"))
    order.update("w00", present(*beats(9)))
    order.update("w00", present(*beats(9)[1:]))
    assert order.seconds_until(hint(id=5)) == 0.0


def test_hinted_jobs_count_as_taken_until_the_next_heartbeat():
    """Otherwise the only idle worker would leave every job to busy ones."""
    workers = present(*beats(50, slots=1))
    order = order_with(NullNotifier("default"))
    order.update("w25", workers)
    for number in range(48):
        order.count(hint(id=number))
    assert [order.seconds_until(hint(id=number)) for number in (0, 26, 40)] == [0.0] * 3
    order.update("w25", workers)
    assert order.seconds_until(hint(id=26)) is None


def test_short_jobs_do_not_count_as_taken_for_long():
    order = order_with(NullNotifier("default"), average_seconds=0.002)
    order.update("w25", present(*beats(50, slots=1)))
    for number in range(1_000):
        order.count(hint(id=number))
    assert order.seconds_until(hint(id=26)) is None


def test_worker_queries_for_skipped_hints_if_the_others_turn_out_to_be_busy():
    order = order_with(NullNotifier("default"))
    order.update("w25", present(*beats(50)))
    assert order.seconds_until(hint(id=50)) is None
    order.update("w25", present(*beats(50)))
    assert not order._wake._is_set
    assert order.seconds_until(hint(id=50)) is None
    order.update("w25", present(*beats(25, busy=10), *beats(50)[25:]))
    assert order._wake._is_set
    order._wake.clear()
    order.update("w25", present(*beats(25, busy=10), *beats(50)[25:]))
    assert not order._wake._is_set, "a skipped hint is evaluated only once more"


def test_worker_queries_for_hints_whose_budget_others_took():
    order = order_with(FixedBudget(0))
    order.update("w00", present(*beats(2)))
    assert order.seconds_until(hint()) is None
    order.update("w00", present(*beats(2)))
    assert order._wake._is_set


def test_position_in_the_order_depends_on_free_slots():
    order = PeerOrder(position=3, free=(1, 4, 2, 5))
    assert [order.late(0, jobs) for jobs in (1, 2, 5, 6, 7, 8, 100)] == [2, 1, 1, 0, 0, -1, -1]
    assert [order.late(3, jobs) for jobs in (1, 6)] == [-1, -2]
    assert [order.late(1, 6), order.late(7, 1)] == [0, -1]


def test_group_depends_on_database_queues_and_types():
    database = {"ENGINE": "e", "HOST": "h", "PORT": 1, "NAME": "db"}
    same = group_of(database, ["b", "a"], ["x", "y"])
    assert same == group_of(database, ["a", "b"], ["y", "x"])
    others = [
        ({**database, "NAME": "db2"}, ["a", "b"], ["x", "y"]),
        (database, None, ["x", "y"]),
        (database, ["a"], ["x", "y"]),
        (database, ["a", "b"], ["x"]),
    ]
    assert len({same, *(group_of(*other) for other in others)}) == 5
