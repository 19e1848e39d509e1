"""A blocker ends while another connection changes it or its dependents, in both orders.

Whatever the order of the statements, the result is the same as if one operation had followed the other: no job stays
blocked forever, and no job starts early.
"""

from itertools import product

import pytest

from django_jobchains.store.rows import Effects
from tests.blockers.consistency import assert_consistent
from tests.blockers.graph import ENDS, MOVES, Graph
from tests.support.connections import (
    READ_COMMITTED,
    REPEATABLE_READ,
    SERIALIZABLE,
    Actor,
    committing,
    holding,
    stopped_before,
    waiting,
)

pytestmark = [committing, pytest.mark.postgresql]


#: The ends and moves in the tests that are not marked as slow.
MAIN_ENDS = ("left is finished", "left continues")
MAIN_MOVES = (
    "right is finished",
    "right continues and waits for left",
    "both is completed by hand",
    "both is deleted with its blockers",
    "waits and fails are cancelled",
    "stopped is retried",
    "a job that waits is enqueued",
)
#: The move that these tests step statement by statement.
STEPPED = "a job that waits is enqueued"
#: Operations that skip a row which another transaction has locked. Their callers repeat them.
SKIPPING = {
    "left is finished",
    "left continues",
    "left fails",
    "left is handed back",
    "left is reaped",
    "right is finished",
    "right continues",
    "right continues and waits for left",
}
#: The operation that does not wait for a lock, but is applied later. It returns the chain even if that has ended.
CANCELLING = "left is cancelled"
#: More statements than any operation sends.
MAX_STATEMENTS = 30


def pairs(ends, moves, quick, *level):
    """Combine each end of the blocker with each operation, in both orders."""
    found = []
    for end, move in product(ends, moves):
        marks = () if end in MAIN_ENDS and move in quick else pytest.mark.slow
        orders = [(end, move)] if move in ends else [(end, move), (move, end)]
        found += [pytest.param(*level, first, second, marks=marks) for first, second in orders]
    return found


@pytest.mark.parametrize(("first", "second"), pairs(ENDS, MOVES, quick=MAIN_MOVES))
def test_operation_that_waits_for_a_lock_has_the_same_result_as_after_the_other(store, first, second):
    graph = Graph(store)
    expected = outcomes(store, graph, first, second)
    before = holding(lambda store: graph.apply(store, MOVES[first]))
    after = waiting(lambda store: graph.apply(store, MOVES[second]))
    results = [before.result(), after.result()]
    store.deferred.apply(10, 0, Effects())
    if second == CANCELLING:
        results[1] = expected[0][0][1]
    assert (results, graph.snapshot()) in expected
    assert before.conflicts == after.conflicts == []
    assert_consistent(store)


@pytest.mark.parametrize(
    ("level", "first", "second"),
    [
        *pairs(MAIN_ENDS, MAIN_MOVES, [STEPPED], READ_COMMITTED),
        *pairs(MAIN_ENDS, ["right is finished", STEPPED], [], REPEATABLE_READ),
        *pairs(MAIN_ENDS, ["right is finished", STEPPED], [], SERIALIZABLE),
    ],
)
def test_operation_interrupted_between_its_statements_has_the_same_result(store, level, first, second):
    expected = [snapshot for _, snapshot in outcomes(store, Graph(store), first, second)]
    for statement in range(2, MAX_STATEMENTS):
        Graph.clear()
        graph = Graph(store)
        slow = stopped_before(statement, lambda store, graph=graph: graph.apply(store, MOVES[first]), level)
        if slow.has_ended:
            return
        quick = waiting(lambda store, graph=graph: graph.apply(store, MOVES[second]), level)
        slow.result(), quick.result()
        store.deferred.apply(10, 0, Effects())
        assert graph.snapshot() in expected, f"The first operation was interrupted before statement {statement}."
        assert_consistent(store)
    raise AssertionError(f"The operation sends more than {MAX_STATEMENTS} statements.")


def outcomes(store, graph, first, second):
    """Return the valid outcomes: the results of one operation after the other, in both orders."""
    straight = graph.apply_in_sequence(store, MOVES[first], MOVES[second])
    results, snapshot = graph.apply_in_sequence(store, MOVES[second], MOVES[first])
    right = [straight, (results[::-1], snapshot)]
    nothing = (False, frozenset(), frozenset(), frozenset())
    for skipping in {first, second} & SKIPPING:
        other = first if second == skipping else second
        [result], snapshot = graph.apply_in_sequence(store, MOVES[other])
        right.append(([result, nothing] if second == skipping else [nothing, result], snapshot))
    return right


@pytest.mark.parametrize("end", ["left is completed by hand", "left is cancelled", "left continues by hand"])
def test_locking_a_chain_that_has_continued_locks_its_last_job(store, end):
    """Three connections: the chain continues, a job starts to wait for it, and then the chain continues again."""
    graph = Graph(store)
    continuing = holding(lambda store: graph.apply(store, MOVES["left continues"]))
    enqueueing = Actor(lambda store: graph.apply(store, MOVES["a job that runs anyway is enqueued"]), holds=True)
    enqueueing.start().until_blocked_or_ended()
    continuing.result()
    enqueueing.until_stopped()
    moving = waiting(lambda store: graph.apply(store, MOVES[end]))
    assert enqueueing.result()[0] is True
    assert moving.result()[0] is True
    late = graph.snapshot()[0]["late.0"][0]
    assert late == ("blocked" if end == "left continues by hand" else "pending")
    assert_consistent(store)
