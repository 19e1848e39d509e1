"""``run_now``: jobs that are scheduled or back off become due, all of them or none."""

from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.chains import JobNotFound, JobNotRunnable
from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.interventions.chains_at import STATES, backing_off, everything, go_on, pending, scheduled, ship, statuses
from tests.store.jobs import claim, database_now

pytestmark = pytest.mark.django_db

NOT_PENDING = ["blocked", "running", "asked_to_stop", "completed", "failed", "cancelled"]


@pytest.mark.parametrize("make", [scheduled, backing_off, pending])
def test_a_job_is_due_now(store: Store, make: Any) -> None:
    chain = make(store)
    before = database_now()
    chains.run_now(chain.id)
    assert before <= chain.refresh().current_job.run_at <= database_now()
    assert [job.id for job in claim(store)] == [chain.id]


def test_only_its_date_changes(store: Store) -> None:
    chain = backing_off(store)
    [before] = Job.objects.values()
    chains.run_now(chain.id)
    [after] = Job.objects.values()
    assert dict(before.items() ^ after.items()).keys() == {"run_at"}


def test_the_scheduled_continuation_of_a_chain_is_due(store: Store) -> None:
    chain = ship.enqueue()
    go_on(chain, delay=3600)
    chains.run_now(chain.refresh().current_job)
    assert [job.chain_index for job in claim(store)] == [1]
    assert statuses(chain) == ["completed", "running"]


@pytest.mark.parametrize("state", NOT_PENDING)
def test_a_job_that_is_not_pending_is_an_error_and_none_is_moved(store: Store, state: str) -> None:
    chain, other = STATES[state](store), scheduled(store)
    before = everything()
    for given in ([chain.id, other.id], [other.id, chain.id], chain.id):
        with pytest.raises(JobNotRunnable, match=f"Job {chain.id} is {chain.status}, not pending") as caught:
            chains.run_now(given)
        assert (caught.value.job_id, caught.value.status) == (chain.id, chain.status)
        assert everything() == before


@pytest.mark.parametrize("state", NOT_PENDING)
def test_the_error_says_what_to_do(store: Store, state: str) -> None:
    remedies = {
        "blocked": "it waits for other chains",
        "running": "it runs already",
        "asked_to_stop": "it runs already",
        "completed": "it has run",
        "failed": "use chains.retry",
        "cancelled": "use chains.retry",
    }
    with pytest.raises(JobNotRunnable, match=f"{remedies[state]}. Nothing was changed."):
        chains.run_now(STATES[state](store).id)


def test_a_deleted_job_is_an_error_and_none_is_moved(store: Store) -> None:
    gone, other = pending(store), scheduled(store)
    chains.delete(gone)
    before = everything()
    with pytest.raises(JobNotFound, match=str(gone.id)) as caught:
        chains.run_now([other.id, gone.id])
    assert caught.value.job_id == gone.id
    assert everything() == before
