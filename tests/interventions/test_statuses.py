"""Every verb tried from every status: the moves of the table are made, and nothing else changes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.chains import Chain, JobAlreadyCompleted, JobNotCompletable, JobNotRunnable
from django_jobchains.models import Job
from django_jobchains.statuses import TRANSITIONS, Status
from django_jobchains.store import Store
from tests.interventions.chains_at import STATES, everything, pending, running
from tests.interventions.verbs import VERBS

pytestmark = pytest.mark.django_db


def complete(chain: Chain) -> None:
    with chains.complete(chain.id) as current:
        current.finish()


@dataclass(frozen=True)
class Move:
    name: str
    call: Callable[[Chain], Any]
    #: Said of a chain it cannot move; None: it leaves that as it is.
    error: type[Exception] | tuple[type[Exception], ...] | None = None

    def __str__(self) -> str:
        return self.name


MOVES = (
    Move("cancel", chains.cancel),
    Move("retry", chains.retry),
    Move("move", chains.run_now, JobNotRunnable),
    Move("move", lambda chain: chains.reschedule(chain, delay=60), JobNotRunnable),
    Move("complete", complete, (JobAlreadyCompleted, JobNotCompletable)),
)


def targets(move: Move, status: str) -> set[Status]:
    return {row.target for row in TRANSITIONS if row.move == move.name and row.source == status}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("move", MOVES, ids=str)
def test_a_move_is_made_from_the_statuses_of_the_table_and_changes_nothing_from_any_other(
    store: Store, move: Move, state: str
) -> None:
    chain = STATES[state](store)
    before = everything()
    if allowed := targets(move, chain.status):
        result = move.call(chain)
        assert chain.refresh().status in allowed
        assert result in ({chain.id}, None)
    elif move.error:
        with pytest.raises(move.error):
            move.call(chain)
        assert everything() == before
    else:
        assert move.call(chain) == set()
        assert everything() == before


@pytest.mark.parametrize("state", STATES)
def test_a_chain_of_any_status_is_deleted(store: Store, state: str) -> None:
    chain = STATES[state](store)
    assert chains.delete(chain) == {chain.id}
    assert not Job.objects.filter(chain_id=chain.id).exists()


def test_there_is_a_chain_of_every_status(store: Store) -> None:
    assert {make(store).status for make in STATES.values()} == set(Status)


def test_the_verbs_are_the_moves_without_a_worker() -> None:
    made = {"run_now": "move", "reschedule": "move"}
    verbs = {made.get(verb.name, verb.name) for verb in VERBS} - {"delete"}
    assert verbs | {"complete"} == {move.name for move in MOVES}


@pytest.mark.parametrize("move", MOVES, ids=str)
def test_no_move_touches_another_chain(store: Store, move: Move) -> None:
    others = [make(store) for make in STATES.values()]
    before = Job.objects.filter(chain_id__in=[other.id for other in others])
    rows = list(before.order_by("pk").values())
    chain = pending(store)
    if move.name == "retry":
        chains.cancel(chain)
    move.call(chain)
    assert list(before.order_by("pk").values()) == rows


def test_asking_a_running_job_to_stop_leaves_its_attempt_as_it_is(store: Store) -> None:
    chain = running(store)
    [before] = Job.objects.filter(chain_id=chain.id).values()
    chains.cancel(chain)
    [after] = Job.objects.filter(chain_id=chain.id).values()
    assert dict(before.items() ^ after.items()).keys() == {"cancel_requested_at"}
