"""The scope, window, exclusions and type decide which chain with the same key is returned."""

from datetime import timedelta

import pytest

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.models import Job
from django_jobchains.processors import get_registry
from tests.deduplication.keyed_chains import (
    ENDED,
    INCOMPLETE,
    KEY,
    SCOPES,
    apply_steps,
    continue_chain,
    finish,
    mail,
    ship,
    start,
)
from tests.support.jobs import database_now

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _declared(monkeypatch):
    monkeypatch.setattr(get_registry(), "declared", {ship.name: ship, mail.name: mail})


every_scope = pytest.mark.parametrize("scope", SCOPES)
#: The scopes that find only chains within the window.
limited_scopes = pytest.mark.parametrize("scope", ["incomplete", "any"])
HOUR = timedelta(hours=1)


def assert_new(chain, *others):
    assert not chain.deduplicated
    assert chain.id not in {other.id for other in others}


def assert_same(chain, first):
    assert chain.deduplicated
    assert chain.id == first.id


def created_ago(chain, ago):
    """Change the creation time of all jobs of a chain."""
    Job.objects.filter(chain_id=chain.id).update(created_at=database_now() - ago)
    return chain


@every_scope
def test_existing_chain_is_returned_and_not_changed(scope):
    first = start({"order": 1}, scope=scope)
    before = Job.objects.values().get()
    deduplicate = Deduplicate(KEY, scope, **SCOPES[scope])
    again = ship.enqueue({"order": 2}, deduplicate=deduplicate, delay=60, priority=9, queue="other", max_attempts=1)
    assert_new(first)
    assert_same(again, first)
    assert (again.type_name, again.input, again.created_at) == (ship.name, {"order": 1}, first.created_at)
    assert Job.objects.values().get() == before


@pytest.mark.parametrize("state", INCOMPLETE)
def test_incomplete_chain_of_any_age_is_found_by_every_scope(store, state):
    first = start()
    apply_steps(store, first, INCOMPLETE[state])
    created_ago(first, timedelta(days=300))
    for scope in SCOPES:
        assert_same(start(scope=scope), first)


@pytest.mark.parametrize("state", ENDED)
def test_ended_chain_is_found_by_scope_any_and_for_its_window(store, state):
    """The window starts with the creation of the chain, not with its end."""
    first = created_ago(start(), HOUR - timedelta(seconds=20))
    apply_steps(store, first, ENDED[state])
    assert first.refresh().status == state.partition(" ")[0]
    assert_same(start(scope="any"), first)
    assert_same(start(scope="any", window=timedelta(days=365 * 500)), first)
    assert_same(start(scope="incomplete_or_recent", window=HOUR), first)
    store.db.ahead_seconds = 30
    assert_new(start(scope="incomplete_or_recent", window=HOUR), first)
    chains.delete(Job.objects.exclude(chain_id=first.id).get().id)
    assert_new(start(), first)


@pytest.mark.parametrize("replace", [(), ("input",), ("input", "run_at")])
@pytest.mark.parametrize("has_started", [False, True])
def test_a_chain_that_has_expired_is_found_as_little_as_one_that_has_ended(store, replace, has_started):
    """It is cancelled by the next claim or by maintenance, whichever is first."""
    first = ship.enqueue({"order": 1}, deduplicate=Deduplicate(KEY), expires=60)
    Job.objects.update(attempt=int(has_started))
    store.db.ahead_seconds = 61
    again = ship.enqueue({"order": 2}, deduplicate=Deduplicate(KEY, replace=replace))
    if has_started:  # It does not expire.
        assert_same(again, first)
    else:
        assert_new(again, first)


def test_a_chain_that_was_claimed_only_to_expire_is_not_found(store):
    """Its claim counts as an attempt until the worker hands it back."""
    first = ship.enqueue({"order": 1}, deduplicate=Deduplicate(KEY), expires=60)
    store.db.ahead_seconds = 61
    assert store.jobs.claim("worker", 1, {ship.name: 60.0}, expired=(expired := [])) == []
    assert [job.id for job in expired] == [first.id]
    assert_new(ship.enqueue({"order": 2}, deduplicate=Deduplicate(KEY)), first)


@pytest.mark.parametrize("scope", ["any", "incomplete_or_recent"])
def test_newest_ended_chain_is_returned(store, scope):
    made = []
    for ago in (1, 3, 2):
        made.append(created_ago(start(), ago * HOUR))
        finish(store, made[-1])
    assert_same(start(scope=scope), made[0])


# Windows


@limited_scopes
def test_chain_is_found_only_within_the_window(store, scope):
    first = start()
    store.db.ahead_seconds = 3_590
    assert_same(start(scope=scope, window=HOUR), first)
    store.db.ahead_seconds = 3_610
    second = start(scope=scope, window=HOUR)
    assert_new(second, first)
    assert_same(start(scope=scope, window=HOUR), second)


@limited_scopes
def test_window_starts_with_the_first_job_of_the_chain(store, scope):
    first = created_ago(start(), 2 * HOUR)
    continue_chain(store, first)
    assert (database_now() - first.current_job.created_at) < HOUR
    assert_new(start(scope=scope, window=HOUR), first)


def test_incomplete_or_recent_prefers_an_open_chain_to_a_newer_one_that_has_ended(store):
    first = created_ago(start(), 2 * HOUR)
    finish(store, start(exclude_chain_ids=[first.id]))
    assert_same(start(scope="incomplete_or_recent", window=HOUR), first)


# Exclusions


@every_scope
def test_excluded_chain_is_not_found(scope):
    first = created_ago(start(), 2 * HOUR)
    second = created_ago(start(scope=scope, exclude_chain_ids=[first.id]), HOUR)
    third = start(scope=scope, exclude_chain_ids={first.id, second.id})
    assert_new(second, first)
    assert_new(third, first, second)
    assert_same(start(scope=scope, exclude_chain_ids=[first.id]), third)
    assert_same(start(scope=scope, exclude_chain_ids=(third.id, second.id)), first)


@every_scope
def test_chain_is_excluded_by_its_own_id_and_not_by_the_id_of_a_later_job(store, scope):
    first = start()
    continue_chain(store, first)
    assert_same(start(scope=scope, exclude_chain_ids=[first.current_job.id]), first)
    assert_new(start(scope=scope, exclude_chain_ids=[first.id]), first)


# Types


@every_scope
def test_type_of_the_chain_matters_and_not_that_of_its_current_job(store, scope):
    first = start(scope=scope)
    continue_chain(store, first)
    other = start(job_type=mail, scope=scope)
    assert_new(other, first)
    assert_same(start(scope=scope), first)


def test_chains_without_a_key_are_not_deduplicated():
    first, second = ship.enqueue(), ship.enqueue()
    assert_new(second, first)
    assert first.deduplication_key is None
    assert_new(start(), first, second)
