"""``run_now``: scheduled jobs and jobs that wait for a retry become due, all of them or none."""

import pytest

from django_jobchains import chains
from django_jobchains.chains import JobNotRunnable
from tests.support.chains import STATES, backing_off, everything, pending, scheduled
from tests.support.jobs import claim, database_now

pytestmark = pytest.mark.django_db

#: States that are not pending, with the remedy in the error message.
NOT_PENDING = {
    "blocked": "it waits for other chains",
    "running": "it is running already",
    "asked_to_stop": "it is running already",
    "completed": "it has already run",
    "failed": "use chains.retry",
    "cancelled": "use chains.retry",
}


@pytest.mark.parametrize("make", [scheduled, backing_off, pending])
def test_a_job_is_due_now(store, make):
    chain = make(store)
    before = database_now()
    chains.run_now(chain.id)
    assert before <= chain.refresh().current_job.run_at <= database_now()
    assert [job.id for job in claim(store)] == [chain.id]


@pytest.mark.parametrize("state", NOT_PENDING)
def test_if_a_job_is_not_pending_none_is_moved_and_the_error_names_a_remedy(store, state):
    chain, other = STATES[state](store), scheduled(store)
    before = everything()
    message = f"Job {chain.id} is {chain.status}, not pending.*{NOT_PENDING[state]}. Nothing was changed."
    for given in ([chain.id, other.id], [other.id, chain.id], chain.id):
        with pytest.raises(JobNotRunnable, match=message) as caught:
            chains.run_now(given)
        assert (caught.value.job_id, caught.value.status) == (chain.id, chain.status)
        assert everything() == before
