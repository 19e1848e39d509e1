"""Every operation is tried from every status: it makes the transitions of ``statuses.py`` and changes nothing else."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.chains import Chain, JobAlreadyCompleted, JobNotCompletable, JobNotRunnable
from django_jobchains.models import Job
from django_jobchains.statuses import TRANSITIONS, Status
from django_jobchains.store import Store
from tests.interventions.verbs import VERBS
from tests.support.chains import STATES, everything, running

pytestmark = pytest.mark.django_db


def complete(chain: Chain) -> None:
    chains.complete(chain.id)


@dataclass(frozen=True)
class Move:
    name: str
    call: Callable[[Chain], Any]
    #: The error for a chain that the operation cannot move. None: it skips that chain.
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
def test_operations_make_exactly_the_listed_transitions(store: Store, move: Move, state: str) -> None:
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
def test_a_chain_with_any_status_is_deleted(store: Store, state: str) -> None:
    chain = STATES[state](store)
    assert chains.delete(chain) == {chain.id}
    assert not Job.objects.filter(chain_id=chain.id).exists()


def test_the_states_cover_every_status(store: Store) -> None:
    assert {make(store).status for make in STATES.values()} == set(Status)


def test_the_moves_cover_every_operation() -> None:
    made = {"run_now": "move", "reschedule": "move"}
    verbs = {made.get(verb.name, verb.name) for verb in VERBS} - {"delete"}
    assert verbs | {"complete"} == {move.name for move in MOVES}


def test_a_cancel_request_leaves_the_running_attempt_unchanged(store: Store) -> None:
    chain = running(store)
    [before] = Job.objects.filter(chain_id=chain.id).values()
    chains.cancel(chain)
    [after] = Job.objects.filter(chain_id=chain.id).values()
    assert dict(before.items() ^ after.items()).keys() == {"cancel_requested_at"}
