"""A blocker ends while something else happens to it or to its dependents, on two connections stepped in both orders.

Whatever the order of their statements, the moves come to what they come to one after the other: nobody stays blocked
for ever, nobody starts early.
"""

from collections.abc import Collection
from itertools import product
from typing import Any

import pytest

from django_jobchains.store import Effects, Store
from tests.blockers.actors import stopped_before, waiting
from tests.blockers.oracle import assert_sound
from tests.blockers.scene import ENDS, MOVES, Picture, Result, Scene
from tests.store.connections import Actor, committing

pytestmark = [committing, pytest.mark.postgresql]

Outcome = tuple[list[Result], Picture]

#: The two that stand for the others where time is short,
MAIN_ENDS = ("left is finished", "left goes on")
#: and for what happens beside them.
MAIN_MOVES = (
    "right is finished",
    "right goes on and waits for left",
    "both is completed by hand",
    "both is deleted with its blockers",
    "waits and fails are cancelled",
    "stopped is retried",
    "a job that waits is enqueued",
)
#: The one stepped statement by statement there.
STEPPED = "a job that waits is enqueued"
#: They skip a row that someone else has locked, and come again.
SKIPPING = {
    "left is finished",
    "left goes on",
    "left fails",
    "left is handed back",
    "left is reaped",
    "right is finished",
    "right goes on",
    "right goes on and waits for left",
}
#: It does not wait for one either, but is applied later: so it returns the chain even if that ends meanwhile.
CANCELLING = "left is cancelled"
#: More than any move has.
MOST_STATEMENTS = 30


def pairs(ends: Collection[str], moves: Collection[str], quick: Collection[str]) -> list[Any]:
    """Each end of the blocker with each move beside it, in both orders."""
    found = []
    for end, move in product(ends, moves):
        marks = () if end in MAIN_ENDS and move in quick else pytest.mark.slow
        orders = [(end, move)] if move in ends else [(end, move), (move, end)]
        found += [pytest.param(first, second, marks=marks) for first, second in orders]
    return found


@pytest.mark.parametrize(("first", "second"), pairs(ENDS, MOVES, quick=MAIN_MOVES))
def test_a_move_that_waits_for_another_comes_to_what_it_comes_to_after_it(
    store: Store, first: str, second: str
) -> None:
    scene = Scene(store)
    expected = outcomes(store, scene, first, second)
    before = Actor(lambda store: scene.play(store, MOVES[first]), holds=True).start().until_stopped()
    after = waiting(lambda store: scene.play(store, MOVES[second]))
    results = [before.result(), after.result()]
    store.apply_deferred(10, 0, Effects())
    if second == CANCELLING:
        results[1] = expected[0][0][1]
    assert (results, scene.picture()) in expected
    assert before.conflicts == after.conflicts == []
    assert_sound(store)


@pytest.mark.parametrize(("first", "second"), pairs(MAIN_ENDS, MAIN_MOVES, quick=[STEPPED]))
def test_a_move_overtaken_between_its_statements_comes_to_the_same(store: Store, first: str, second: str) -> None:
    expected = [picture for _, picture in outcomes(store, Scene(store), first, second)]
    for statement in range(2, MOST_STATEMENTS):
        Scene.clear()
        scene = Scene(store)
        slow = stopped_before(statement, lambda store, scene=scene: scene.play(store, MOVES[first]))
        if slow.has_ended:
            return
        quick = waiting(lambda store, scene=scene: scene.play(store, MOVES[second]))
        slow.result(), quick.result()
        store.apply_deferred(10, 0, Effects())
        assert scene.picture() in expected, f"overtaken before statement {statement}"
        assert_sound(store)
    raise AssertionError("It never ends.")


def outcomes(store: Store, scene: Scene, first: str, second: str) -> list[Outcome]:
    """What is right: one after the other, either way round."""
    straight = scene.one_after_the_other(store, MOVES[first], MOVES[second])
    results, picture = scene.one_after_the_other(store, MOVES[second], MOVES[first])
    right = [straight, (results[::-1], picture)]
    nothing: Result = (False, frozenset(), frozenset(), frozenset())
    for skipping in {first, second} & SKIPPING:
        other = first if second == skipping else second
        [result], picture = scene.one_after_the_other(store, MOVES[other])
        right.append(([result, nothing] if second == skipping else [nothing, result], picture))
    return right


@pytest.mark.parametrize("end", ["left is completed by hand", "left is cancelled", "left goes on by hand"])
def test_whoever_waited_for_a_chain_that_has_gone_on_holds_it_where_it_is_now(store: Store, end: str) -> None:
    """Three connections: the chain goes on, a job comes to wait for it, and then the chain moves again."""
    scene = Scene(store)
    going_on = Actor(lambda store: scene.play(store, MOVES["left goes on"]), holds=True).start().until_stopped()
    enqueueing = Actor(lambda store: scene.play(store, MOVES["a job that runs anyway is enqueued"]), holds=True)
    enqueueing.start().until_blocked_or_ended()
    going_on.result()
    enqueueing.until_stopped()
    moving = waiting(lambda store: scene.play(store, MOVES[end]))
    assert enqueueing.result()[0] is True
    assert moving.result()[0] is True
    late = scene.picture()[0]["late.0"][0]
    assert late == ("blocked" if end == "left goes on by hand" else "pending")
    assert_sound(store)
