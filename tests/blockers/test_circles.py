"""A continuation cannot wait for a chain that waits for it, directly or indirectly: neither would ever run."""

from itertools import pairwise

import pytest

from django_jobchains import chains
from django_jobchains.exceptions import ChainNotFound, InvalidBlockers
from tests.blockers.consistency import assert_consistent
from tests.support.connections import committing, holding, waiting
from tests.support.jobs import create, finished, new_job, next_job, running, stored, tables

pytestmark = committing


def wait_for(store, job, *others):
    """Complete a job with a continuation that waits for the chains of the others."""
    return store.attempts.finish(
        [finished(job, None, next_job(job, blockers=tuple(other.chain_id for other in others)))]
    )


@pytest.mark.parametrize("length", [1, 3])
def test_continuation_that_closes_a_circle_of_any_length_is_refused(store, length):
    jobs = running(store, length)
    for job, following in pairwise(jobs):
        wait_for(store, job, following)
    before = tables()
    with pytest.raises(InvalidBlockers, match=str(jobs[-1].chain_id)):
        wait_for(store, jobs[-1], jobs[0])
    assert tables() == before
    assert_consistent(store)


def test_circle_through_chains_that_were_enqueued_with_blockers_is_refused(store):
    [job] = running(store)
    [one] = create(store, blockers=(job.chain_id,))
    [two] = create(store, blockers=(one,))
    before = tables()
    with pytest.raises(InvalidBlockers):
        store.attempts.finish([finished(job, None, next_job(job, blockers=(two,)))])
    assert tables() == before


def test_two_paths_to_the_same_chain_are_not_a_circle(store):
    first, second = running(store, 2)
    [left] = create(store, blockers=(second.chain_id,))
    [right] = create(store, blockers=(second.chain_id,))
    store.attempts.finish([finished(first, None, next_job(first, blockers=(left, right)))])
    assert_consistent(store)


def test_chain_that_was_completed_by_hand_closes_no_circle(store):
    """It has the same blockers as before, but no longer waits."""
    [job] = running(store)
    [dependent] = create(store, blockers=(job.chain_id,))
    chains.complete(dependent)
    store.attempts.finish([finished(job, None, continuation := next_job(job, blockers=(dependent,)))])
    assert stored(continuation.id).status == "pending"


def test_circle_within_one_batch_of_completions_is_refused(store):
    one, two = running(store, 2)
    before = tables()
    with pytest.raises(InvalidBlockers):
        store.attempts.finish(
            [
                finished(one, None, next_job(one, blockers=(two.chain_id,))),
                finished(two, None, next_job(two, blockers=(one.chain_id,))),
            ]
        )
    assert tables() == before


def test_two_new_chains_cannot_wait_for_each_other(store):
    one, two = new_job(), new_job()
    one.blockers, two.blockers = (two.id,), (one.id,)
    with pytest.raises(ChainNotFound):
        store.jobs.create([one, two])
    assert not any(tables())


@pytest.mark.postgresql
@pytest.mark.parametrize("length", [2, 3, 4])
def test_circle_cannot_be_closed_by_transactions_that_do_not_see_each_other(store, length):
    """Every second chain already waits for the next one. The others begin to wait at the same time."""
    jobs = running(store, length)
    following = dict(zip(jobs, [*jobs[1:], jobs[0]], strict=True))
    late = jobs[1::2] if length > 2 else jobs
    for job in jobs:
        if job not in late:
            wait_for(store, job, following[job])
    errors = continue_together(late, following)
    assert_consistent(store)
    assert [type(error) for error in errors] == [InvalidBlockers]


def continue_together(jobs, following):
    """Start all continuations before the first one is committed, and return their errors."""
    first, *others = jobs
    actors = [holding(lambda store: wait_for(store, first, following[first]))]
    actors += [waiting(lambda store, job=job: wait_for(store, job, following[job])) for job in others]
    errors = []
    for actor in actors:
        try:
            assert actor.result()
        except Exception as error:
            errors.append(error)
    return errors
