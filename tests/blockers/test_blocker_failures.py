"""A blocker that fails or is cancelled: the job keeps waiting, fails, or runs anyway, by the policy of its type."""

from dataclasses import asdict

import pytest

from django_jobchains import chains
from django_jobchains.store.blockers import Blockers
from django_jobchains.store.rows import Effects
from tests.blockers.chains import FAILS, RUNS, STEP, WAITS, cancel, claim_only, fail, statuses
from tests.blockers.consistency import assert_consistent
from tests.support.jobs import failed_try

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(("kind", "status"), [(WAITS, "blocked"), (FAILS, "failed"), (RUNS, "pending")], ids=str)
def test_each_policy_applies_to_a_continuation(store, kind, status):
    blocker, chain = STEP.enqueue(), STEP.enqueue(delay=60)
    fail(store, blocker, Effects())
    behind = FAILS.enqueue(blockers=[chain])
    with chains.current_job(chain.id) as job:
        job.continue_with(kind, blockers=[blocker])
    assert statuses(chain, behind) == [status, "failed" if kind is FAILS else "blocked"]
    assert_consistent(store)


def test_effects_name_a_chain_that_fails_when_it_is_enqueued(store):
    blocker = STEP.enqueue()
    cancel(store, blocker, Effects())
    effects = Effects()
    item = FAILS.item(blockers=[blocker])
    store.jobs.create([item], effects)
    assert (effects.due_types, effects.finished_chains) == (set(), {item.id})


def test_failures_propagate_to_every_level(store):
    blocker = STEP.enqueue()
    levels = [[FAILS.enqueue(blockers=[blocker]) for _ in range(2)]]
    for _ in range(4):
        levels.append([FAILS.enqueue(blockers=levels[-1]) for _ in range(2)])
    waiting, anyway = WAITS.enqueue(blockers=levels[2][:1]), RUNS.enqueue(blockers=levels[2])
    behind = FAILS.enqueue(blockers=[waiting])
    fail(store, blocker, effects := Effects())
    failed = [chain for level in levels for chain in level]
    assert set(statuses(*failed)) == {"failed"}
    assert statuses(waiting, anyway, behind) == ["blocked", "pending", "blocked"]
    assert effects.finished_chains == {blocker.id, *(chain.id for chain in failed)}
    assert effects.due_types == {RUNS.name}
    assert_consistent(store)


@pytest.mark.django_db(transaction=True)
def test_effects_of_a_transaction_that_was_rolled_back_are_forgotten(store, monkeypatch):
    other = STEP.enqueue()
    fail(store, other, effects := Effects())
    blocker = STEP.enqueue()
    first = FAILS.enqueue(blockers=[blocker])
    second = FAILS.enqueue(blockers=[first])
    before, fail_waiting = asdict(effects), Blockers.fail_waiting

    def interrupted(blockers, job_ids, effects):
        if second.id in job_ids:
            raise ValueError("a bug")
        return fail_waiting(blockers, job_ids, effects)

    with monkeypatch.context() as patch, pytest.raises(ValueError, match="a bug"):
        patch.setattr(Blockers, "fail_waiting", interrupted)
        fail(store, blocker, effects)
    assert asdict(effects) == before
    assert effects.finished_chains == {other.id}


def test_failures_propagate_from_the_last_jobs_of_chains(store):
    blocker, chain = STEP.enqueue(), STEP.enqueue()
    last = FAILS.enqueue(blockers=[chain])
    with chains.current_job(chain.id) as job:
        job.continue_with(FAILS, blockers=[blocker])
    fail(store, blocker, Effects())
    assert statuses(chain, last) == ["failed", "failed"]
    assert [job.status for job in chain.jobs] == ["completed", "failed"]
    assert_consistent(store)


def test_one_hundred_levels_fail_in_one_call(store):
    line = [STEP.enqueue()]
    for _ in range(100):
        line.append(FAILS.enqueue(blockers=[line[-1]]))
    cancel(store, line[0], effects := Effects())
    assert effects.finished_chains == {chain.id for chain in line}
    assert set(statuses(*line[1:])) == {"failed"}
    assert_consistent(store)


def test_retried_attempt_is_not_a_failure(store):
    blocker = STEP.enqueue()
    dependents = [kind.enqueue(blockers=[blocker]) for kind in (WAITS, FAILS, RUNS)]
    [job] = claim_only(store, blocker)
    store.attempts.reschedule([failed_try(job, delay_seconds=60)], effects := Effects())
    assert statuses(*dependents) == ["blocked"] * 3
    assert effects.finished_chains == set()
    assert_consistent(store)
