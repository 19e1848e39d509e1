"""Which workers query because of a hint: by their share of a budget, or by an order that all of them compute."""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from django_jobchains.notifications import EVERY, Hint, Notifier, NullNotifier
from django_jobchains.notifications.hints import MERGE_SECONDS, REQUERY_SECONDS
from django_jobchains.store.workers import Beat
from django_jobchains.worker.claim_wait import MAX_NOTIFY_SECONDS, WakeUp
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


def hint(count=1, id=0, subject=TYPE, kind="job_scheduled"):
    return Hint(kind, subject, count, f"{id:x}" if count else "")


def order_with(notifier=None, *, free=10, has_limits=False, average_seconds=None):
    lane = SimpleNamespace(free=lambda: free)
    context = context_for(poll_seconds=60)
    context.queues.has_limits = has_limits
    context.counter.average_seconds = {} if average_seconds is None else {TYPE: average_seconds}
    order = WakeOrder(context, notifier or NullNotifier("default"), {TYPE: lane})
    order.group = "g"
    return order


def present(count, silent_seconds=0.0, **changes):
    """Return this many workers, with the ids w00, w01 …"""
    return [facts_of(replace(BEAT, id=f"w{number:02}", **changes), silent_seconds) for number in range(count)]


def idle_wake_up():
    """Return what a worker waits for that has just queried for all types, and next does so in a minute."""
    wake = WakeUp()
    assert wake.begin_query() is None
    wake.set([])
    wake.wait(60)
    assert wake.begin_query() == set()
    return wake


def seconds_of(workers, hint):
    """Return in how many seconds each worker queries."""
    seconds = []
    for worker in workers:
        order = order_with()
        order.update(worker.id, workers)
        seconds.append(order.seconds_until(hint))
    return seconds


# A hint wakes the claim loop


@pytest.mark.parametrize(
    ("given", "wakes"),
    [
        (hint(), True),
        (hint(None, subject=EVERY), True),
        (hint(subject="mail.send"), False),
        (hint(kind="chain_finished"), False),
        (hint(kind="ownership_lost"), False),
    ],
)
def test_worker_wakes_only_for_its_own_types(given, wakes):
    order = order_with()
    order.on_hint(given)
    assert order._wake.will_query_soon is wakes
    assert order._wake.is_second_query_due is wakes


def test_worker_queries_again_after_hints_may_have_been_dropped(clock):
    """The jobs of dropped hints are committed before the second query."""
    order = order_with()
    for seconds, is_due in ((0, True), (MERGE_SECONDS, True), (REQUERY_SECONDS - MERGE_SECONDS, False)):
        if not seconds:
            order.on_hint(hint())
        clock.now += seconds
        order._wake.begin_query()
        assert order._wake.is_second_query_due is is_due


def test_later_hint_postpones_the_second_query(clock):
    order = order_with()
    for _ in range(2):
        order.on_hint(hint())
        clock.now += REQUERY_SECONDS * 0.9
    order._wake.begin_query()
    assert order._wake.is_second_query_due


def test_query_is_only_for_the_types_of_its_hints(clock):
    wake = idle_wake_up()
    wake.query_in(30.0, ["a"])
    wake.query_in(0.0, ["b"])
    assert wake.begin_query() == {"a", "b"}
    wake.set()
    assert wake.begin_query() is None
    wake.set([])
    wake.wait(60)
    assert wake.begin_query() == {"a", "b"}
    clock.now += REQUERY_SECONDS
    assert wake.begin_query() == {"a", "b"}, "the second query is for the same types"
    wake.set(["a"])
    assert wake.begin_query() == {"a"}


@pytest.mark.parametrize("reason", ["query_in", "set", "slot_is_free", "nothing"])
def test_query_for_another_reason_is_for_all_types(clock, reason):
    wake = idle_wake_up()
    if reason != "nothing":
        wake.set(["a"])
        getattr(wake, reason)(*[0.0] if reason == "query_in" else [])
    assert wake.begin_query() is None


def test_hints_about_some_types_do_not_delay_the_query_for_all(clock):
    wake = idle_wake_up()
    wake.set(["a"])
    for seconds, types in ((0, {"a"}), (59, {"a"}), (1, None)):
        clock.now += seconds
        wake.set(["a"])
        assert wake.begin_query() == types
        wake.set(["a"])
        wake.wait(60)


def test_query_for_records_is_not_for_jobs_whose_time_has_not_come(clock, monkeypatch):
    wake = idle_wake_up()
    monkeypatch.setattr(wake._changed, "wait", lambda seconds: setattr(clock, "now", clock.now + seconds))
    found = []
    for seconds in (60, 3, 60, 60):  # The second query has found a job that is due in three seconds.
        wake.wait(seconds, 2)
        found.append(wake.begin_query())
    assert found == [set(), set(), None, set()]


def test_wait_after_a_query_for_some_types_replaces_the_one_before(clock):
    wake = idle_wake_up()
    for seconds in (0.05, 60):  # The first query has found jobs, the second one none.
        wake.set(["a"])
        wake.wait(seconds)
        assert wake.begin_query() == {"a"}
    wake.set([])
    wake.wait(60)
    clock.now += 1
    assert wake.begin_query() == set()


def test_query_after_one_that_failed_is_for_all_types(clock):
    wake = idle_wake_up()
    wake.set(["a"])
    wake.wait(60)
    assert wake.begin_query() == {"a"}
    assert wake.begin_query() is None


@pytest.mark.parametrize("is_full", [True, False])
def test_query_that_found_enough_jobs_for_all_slots_is_followed_by_one_for_all_types(clock, is_full):
    wake = idle_wake_up()
    wake.set(["a"])
    assert wake.begin_query() == {"a"}
    wake.record_query(found=True, is_full=is_full)
    wake.set(["a"])
    assert wake.begin_query() == (None if is_full else {"a"})


def test_worker_that_stays_full_notifies_its_peers_less_and_less_often(clock):
    wake = WakeUp()

    def must_notify(*, after, is_full=True):
        """Query because of a hint about jobs of all workers. A full worker cannot query again a little later."""
        clock.now += after
        wake.query_in(0.0, is_shared=True)
        wake.begin_query()
        wake.record_query(found=True, is_full=is_full)
        clock.now += REQUERY_SECONDS
        wake.begin_query()
        if not is_full:
            wake.record_query(found=False, is_full=False)
        return wake.must_notify_peers()

    assert must_notify(after=0)
    assert must_notify(after=REQUERY_SECONDS)
    assert not must_notify(after=0)
    assert must_notify(after=2 * REQUERY_SECONDS)
    for _ in range(10):
        must_notify(after=MAX_NOTIFY_SECONDS)
    assert not must_notify(after=MAX_NOTIFY_SECONDS * 0.9)
    assert must_notify(after=MAX_NOTIFY_SECONDS * 0.1)
    assert not must_notify(after=0, is_full=False)
    assert must_notify(after=0), "it had free slots in between"


def test_stopping_worker_ignores_hints():
    budget = FixedBudget(1)
    order = order_with(budget)
    for accepts, requests in ((False, []), (True, [(10, "g")])):
        order._wake.accepts_hints = accepts
        order.on_hint(hint())
        assert (budget.requests, order._wake._is_set) == (requests, accepts)


# Budgets


@pytest.mark.parametrize(("share", "seconds"), [(1, 0.0), (0, None)])
def test_worker_queries_only_if_it_gets_a_share_of_the_budget(share, seconds):
    budget = FixedBudget(share)
    assert order_with(budget, free=7).seconds_until(hint(3)) == seconds
    assert budget.requests == [(7, "g")]


@pytest.mark.parametrize(
    ("given", "options", "workers"),
    [
        (hint(None), {}, 0),
        (hint(1, subject=EVERY), {}, 0),
        (hint(1), {"free": 0}, 0),
        (hint(1), {"has_limits": True}, 0),
        (hint(1), {}, 1),
    ],
)
def test_worker_that_is_alone_or_whose_demand_is_unknown_queries_without_a_budget(given, options, workers):
    budget = FixedBudget(0)
    order = order_with(budget, **options)
    if workers:
        order.update("w00", present(workers))
    assert order.seconds_until(given) == 0.0
    assert budget.requests == []


def test_hints_that_follow_closely_do_not_use_the_budget(monkeypatch):
    monkeypatch.setattr("django_jobchains.worker.wake_order.MIN_ASK_SECONDS", 10.0)
    order = order_with(FixedBudget(0))
    assert [order.seconds_until(hint(id=number)) for number in range(3)] == [None, 0.0, 0.0]


def test_worker_queries_for_hints_whose_budget_others_took():
    order = order_with(FixedBudget(0))
    order.update("w00", present(2))
    assert order.seconds_until(hint()) is None
    order.update("w00", present(2))
    assert order._wake._is_set


# The order of workers, without budgets


@pytest.mark.parametrize(
    ("jobs", "slots", "count_at_once"), [(1, 10, 2), (10, 10, 2), (11, 10, 3), (7, 1, 8), (999, 10, 50)]
)
def test_as_many_workers_query_at_once_as_the_jobs_need_and_one_more(jobs, slots, count_at_once):
    assert seconds_of(present(50, slots=slots), hint(jobs, id=123)).count(0.0) == count_at_once


def test_other_workers_query_later_and_later_or_at_their_poll():
    seconds = seconds_of(present(50), hint(1, id=7))
    late = sorted(time for time in seconds if time)
    assert late == [LATE_SECONDS * LATE_FACTOR**number for number in range(len(late))]
    assert late[-1] < 60 <= LATE_FACTOR * late[-1]
    assert seconds.count(None) == 50 - 2 - len(late)


def test_order_begins_with_another_worker_for_each_hint():
    first = Counter(seconds_of(present(10), hint(id=number)).index(0.0) for number in range(1, 9))
    assert len(first) == 8


@pytest.mark.parametrize(
    "changes",
    [{"busy": 10}, {"is_stopping": True}, {"queues": ("mail",)}, {"type_names": ("other",)}, {"silent_seconds": 25}],
)
def test_worker_that_cannot_take_the_job_or_is_silent_has_no_position(changes):
    order = order_with()
    order.update("w00", [present(1)[0], present(2, **changes)[1]])
    assert order.is_alone


def test_worker_without_a_position_or_whose_row_was_deleted_queries_at_once():
    order = order_with()
    assert order.seconds_until(hint()) == 0.0
    order.update("w00", present(9))
    order.update("w00", present(9)[1:])
    assert order.seconds_until(hint(id=5)) == 0.0


def test_hinted_jobs_count_as_taken_until_the_next_heartbeat():
    """Otherwise the only idle worker would leave every job to busy ones."""
    workers = present(50, slots=1)
    order = order_with()
    order.update("w25", workers)
    for number in range(48):
        order.count(hint(id=number))
    assert [order.seconds_until(hint(id=number)) for number in (0, 26, 40)] == [0.0] * 3
    order.update("w25", workers)
    assert order.seconds_until(hint(id=26)) is None


def test_short_jobs_do_not_count_as_taken_for_long():
    order = order_with(average_seconds=0.002)
    order.update("w25", present(50, slots=1))
    for number in range(1_000):
        order.count(hint(id=number))
    assert order.seconds_until(hint(id=26)) is None


def test_worker_queries_for_skipped_hints_if_the_others_turn_out_to_be_busy():
    order, half_busy = order_with(), [*present(25, busy=10), *present(50)[25:]]
    for _ in range(2):
        order.update("w25", present(50))
        assert not order._wake._is_set
        assert order.seconds_until(hint(id=50)) is None
    order.update("w25", half_busy)
    assert order._wake._is_set
    order._wake.begin_query()
    order.update("w25", half_busy)
    assert not order._wake._is_set, "a skipped hint is evaluated only once more"


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
