"""Which chain stands for another of the same key: by scope, window, exclusions and type."""

from datetime import timedelta
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.models import Chain, Job
from django_jobchains.processors import JobType, Processors, Registry, RunningJob
from django_jobchains.store import Store
from django_jobchains.worker import Worker
from tests.attempts.work import WITHOUT_WAKE_UPS, committed
from tests.deduplication.chains_at import ENDED, INCOMPLETE, KEY, bring, fail, finish, go_on, mail, ship, start
from tests.store.jobs import database_now

pytestmark = pytest.mark.django_db

both_scopes = pytest.mark.parametrize("scope", ["incomplete", "any"])
HOUR = timedelta(hours=1)


def assert_new(chain: Chain, *others: Chain) -> None:
    assert not chain.deduplicated
    assert chain.id not in {other.id for other in others}


def assert_same(chain: Chain, first: Chain) -> None:
    assert chain.deduplicated
    assert chain.id == first.id


def created_ago(chain: Chain, ago: timedelta) -> Chain:
    """All its jobs are taken to be created so long ago."""
    Job.objects.filter(chain_id=chain.id).update(created_at=database_now() - ago)
    return chain


@both_scopes
def test_the_same_key_is_the_chain_that_exists_with_its_own_input(scope: str) -> None:
    first = start({"order": 1}, scope=scope)
    again = start({"order": 2}, scope=scope)
    assert_new(first)
    assert_same(again, first)
    assert (again.type_name, again.input, again.created_at) == (ship.name, {"order": 1}, first.created_at)
    assert Job.objects.get().input == {"order": 1}


@both_scopes
def test_nothing_else_of_what_is_given_reaches_the_chain_that_exists(scope: str) -> None:
    start(1, scope=scope)
    before = Job.objects.values().get()
    options = {"delay": 60, "priority": 9, "queue": "other", "max_attempts": 1}
    ship.enqueue(2, deduplicate=Deduplicate(KEY, scope=scope), **options)  # type: ignore[arg-type]
    assert Job.objects.values().get() == before


@pytest.mark.parametrize("state", INCOMPLETE)
@both_scopes
def test_a_chain_that_may_still_run_counts(store: Store, state: str, scope: str) -> None:
    first = start()
    bring(store, first, INCOMPLETE[state])
    assert_same(start(scope=scope), first)


def test_a_chain_that_waits_for_its_blockers_counts() -> None:
    first = ship.enqueue(blockers=[mail.enqueue()], deduplicate=Deduplicate(KEY))
    assert first.status == "blocked"
    assert_same(start(), first)


@pytest.mark.parametrize("state", ENDED)
def test_a_chain_that_has_ended_does_not_count(store: Store, state: str) -> None:
    first = start()
    bring(store, first, ENDED[state])
    assert first.status == state.partition(" ")[0]
    assert_new(start(), first)


@pytest.mark.parametrize("state", ENDED)
def test_by_scope_any_a_chain_that_has_ended_counts_too(store: Store, state: str) -> None:
    first = start()
    bring(store, first, ENDED[state])
    assert_same(start(scope="any"), first)


def test_a_chain_that_is_retried_counts_again(store: Store) -> None:
    first = start()
    bring(store, first, (go_on, fail))
    chains.retry(first.current_job)
    assert_same(start(), first)


@both_scopes
def test_a_deleted_chain_does_not_count(scope: str) -> None:
    first = start()
    chains.delete(first)
    assert_new(start(scope=scope), first)


def test_scope_any_returns_the_newest(store: Store) -> None:
    made = []
    for ago in (1, 3, 2):
        made.append(created_ago(start(), ago * HOUR))
        finish(store, made[-1])
    assert_same(start(scope="any"), made[0])


# Windows


@both_scopes
def test_a_chain_counts_only_within_the_window(store: Store, scope: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = start()
    monkeypatch.setattr(store, "ahead_seconds", 3_590)
    assert_same(start(scope=scope, window=HOUR), first)
    monkeypatch.setattr(store, "ahead_seconds", 3_610)
    second = start(scope=scope, window=HOUR)
    assert_new(second, first)
    assert_same(start(scope=scope, window=HOUR), second)


@both_scopes
def test_the_window_counts_from_the_creation_of_the_chain_not_of_its_current_job(store: Store, scope: str) -> None:
    first = created_ago(start(), 2 * HOUR)
    go_on(store, first)
    assert (database_now() - first.current_job.created_at) < HOUR
    assert_new(start(scope=scope, window=HOUR), first)


@both_scopes
@pytest.mark.parametrize("window", [timedelta(microseconds=1), timedelta(days=1, microseconds=1)])
def test_a_window_is_exact(scope: str, window: timedelta) -> None:
    first = created_ago(start(), window + timedelta(seconds=5))
    assert_new(start(scope=scope, window=window), first)


@both_scopes
def test_a_window_may_be_of_centuries(scope: str) -> None:
    first = created_ago(start(), timedelta(days=300))
    assert_same(start(scope=scope, window=timedelta(days=365 * 500)), first)


def test_outside_the_window_another_chain_of_the_key_runs_beside_it() -> None:
    first = created_ago(start(), 2 * HOUR)
    second = start(window=HOUR)
    assert [first.refresh().status, second.status] == ["pending", "pending"]
    assert_same(start(), second)


# Exclusions


@both_scopes
def test_an_excluded_chain_does_not_count(scope: str) -> None:
    first = created_ago(start(), 2 * HOUR)
    second = created_ago(start(scope=scope, exclude_chain_ids=[first.id]), HOUR)
    third = start(scope=scope, exclude_chain_ids={first.id, second.id})
    assert_new(second, first)
    assert_new(third, first, second)
    assert_same(start(scope=scope, exclude_chain_ids=[first.id]), third)
    assert_same(start(scope=scope, exclude_chain_ids=(third.id, second.id)), first)


@both_scopes
def test_a_chain_is_excluded_by_its_own_id_at_its_continuation_too(store: Store, scope: str) -> None:
    first = start()
    go_on(store, first)
    assert_same(start(scope=scope, exclude_chain_ids=[first.current_job.id]), first)
    assert_new(start(scope=scope, exclude_chain_ids=[first.id]), first)


# Types


@both_scopes
def test_another_type_with_the_same_key_is_another_chain(scope: str) -> None:
    first = start(scope=scope)
    other = start(job_type=mail, scope=scope)
    assert_new(other, first)


@both_scopes
def test_the_type_is_that_of_the_chain_not_of_its_current_job(store: Store, scope: str) -> None:
    first = start(scope=scope)
    go_on(store, first)
    other = start(job_type=mail, scope=scope)
    assert_new(other, first)
    assert_same(start(scope=scope), first)


def test_without_a_key_every_chain_is_its_own() -> None:
    first, second = ship.enqueue(), ship.enqueue()
    assert_new(second, first)
    assert first.deduplication_key is None
    assert_new(start(), first, second)


def test_every_job_of_a_chain_carries_its_key(store: Store) -> None:
    first = start()
    go_on(store, first)
    go_on(store, first)
    assert [job.deduplication_key for job in first.jobs] == [KEY] * 3
    assert first.refresh().deduplication_key == KEY


@committed
def test_a_chain_whose_first_job_a_worker_completed_counts_while_its_continuation_is_pending(settings: Any) -> None:
    settings.JOBCHAINS = WITHOUT_WAKE_UPS
    processors, registry = Processors(), Registry()
    last: JobType[Any, Any] = JobType("shop.last")

    @processors.register("shop.first")
    def first(job: RunningJob[Any]) -> Any:
        return job.continue_with(last)

    processors.register(last)(lambda job: None)
    registry.add(processors)
    chain = first.enqueue(deduplicate=Deduplicate(KEY))
    Worker(slots=1, registry=registry, types=["shop.first"]).run_until_idle()
    assert [job.status for job in chain.jobs] == ["completed", "pending"]
    assert_same(first.enqueue(deduplicate=Deduplicate(KEY)), chain)
    Worker(slots=1, registry=registry, types=["shop.last"]).run_until_idle()
    assert_new(first.enqueue(deduplicate=Deduplicate(KEY)), chain)
