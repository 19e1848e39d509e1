"""``Deduplicate(replace=…)`` changes the first job of a chain until it starts, and never after that."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection, transaction

from django_jobchains import chains, context
from django_jobchains.chains import Deduplicate
from django_jobchains.models import Job, JobBlocker
from django_jobchains.processors import get_registry
from django_jobchains.store.rows import Effects
from tests.deduplication.keyed_chains import (
    ENDED,
    INCOMPLETE,
    KEY,
    apply_steps,
    cancel,
    fail,
    finish,
    mail,
    postpone,
    run,
    ship,
    start,
)
from tests.support.attempts import committed
from tests.support.connections import committing, elsewhere, holding, stopped_before, waiting
from tests.support.jobs import claim, database_now

pytestmark = pytest.mark.django_db

BOTH = ("input", "run_at")
HOUR = timedelta(hours=1)
NEAR = timedelta(seconds=20)


@pytest.fixture(autouse=True)
def _declared(monkeypatch):
    monkeypatch.setattr(get_registry(), "declared", {ship.name: ship, mail.name: mail})


def again(input=None, replace=BOTH, key=KEY, *, deduplicate=(), **options):
    """Enqueue an input for the key that replaces these values."""
    return ship.enqueue(input, deduplicate=Deduplicate(key, replace=replace, **dict(deduplicate)), **options)


def item(input=None, replace=BOTH, key=KEY, **options):
    return ship.item(input, deduplicate=Deduplicate(key, replace=replace), **options)


def flags(*created):
    return [(chain.deduplicated, chain.replaced) for chain in created]


def hand_back(store, chain):
    store.attempts.hand_back([run(store, chain).key])


def retry(store, chain):
    chains.retry(chain.id)


# Which values


def test_replaces_what_is_named():
    first = start("old")
    chain = again("new", delay=HOUR)
    assert (chain.id, *flags(first, chain)) == (first.id, (False, False), (True, True))
    assert (chain.input, chain.created_at) == ("new", first.created_at)
    job = Job.objects.get()
    assert job.input == "new"
    assert abs(job.run_at - database_now() - HOUR) < NEAR
    again("newer", ("input",), run_at=job.run_at + HOUR, queue="other", priority=9, max_attempts=1)
    assert Job.objects.values().get() == {**vars_of(job), "input": "newer"}
    again("newest", ("run_at",), run_at=job.run_at + HOUR)
    assert Job.objects.values().get() == {**vars_of(job), "input": "newer", "run_at": job.run_at + HOUR}


def vars_of(job):
    return {field.attname: getattr(job, field.attname) for field in job._meta.concrete_fields}


@pytest.mark.parametrize("input", [None, "", 0, [], {"a": [1]}, "null", "größe \\ '"])
def test_input_may_be_any_json(input):
    start("old")
    assert again(input, ("input",)).input == input


def test_new_time_may_be_earlier_and_is_never_in_the_past():
    start()
    for options, delay in [({"delay": 2 * HOUR}, 2 * HOUR), ({"delay": HOUR}, HOUR), ({}, None)]:
        again(**options)
        assert abs(Job.objects.get().run_at - database_now() - (delay or timedelta(0))) < NEAR
    again(run_at=database_now() - HOUR)
    assert abs(Job.objects.get().run_at - database_now()) < NEAR


def test_limit_of_the_start_belongs_to_the_time():
    """A limit that counted from the old time could be over before the job is due."""
    ship.enqueue(delay=HOUR, expires=HOUR, deduplicate=Deduplicate(KEY))
    assert Job.objects.get().expires_at == Job.objects.get().run_at + HOUR
    again(replace=("input",), expires=5 * HOUR)
    assert Job.objects.get().expires_at == Job.objects.get().run_at + HOUR
    again(delay=3 * HOUR, expires=2 * HOUR)
    assert Job.objects.get().expires_at == Job.objects.get().run_at + 2 * HOUR
    time = Job.objects.get().run_at + HOUR
    again(expires=time)
    assert Job.objects.get().expires_at == time
    again()
    assert Job.objects.get().expires_at is None


def test_context_belongs_to_the_input():
    with context.bound(tenant="acme", actor=1):
        start("old")
    with context.bound(tenant="acme", actor=2):
        again("new", ("run_at",))
        assert Job.objects.get().context == {"tenant": "acme", "actor": 1}
        again("new", ("input",))
    assert Job.objects.get().context == {"tenant": "acme", "actor": 2}
    again("newer", ("input",))
    assert Job.objects.get().context is None


def test_without_replace_nothing_is_changed():
    start("old")
    before = Job.objects.values().get()
    assert flags(again("new", (), delay=HOUR)) == [(True, False)]
    assert Job.objects.values().get() == before


@pytest.mark.parametrize("key", [{"key": "other"}, {"tenant": "acme"}, {"exclude_chain_ids": True}])
def test_other_chains_are_not_changed(key):
    first = start("old")
    if "exclude_chain_ids" in key:
        key = {"exclude_chain_ids": [first.id]}
    chain = ship.enqueue("new", deduplicate=Deduplicate(**{"key": KEY, "replace": BOTH, **key}))
    assert flags(chain) == [(False, False)]
    assert first.refresh().input == "old"


# Which jobs

UNSTARTED = {
    "pending": (),
    "scheduled": (postpone,),
    "retried before it started": (cancel, retry),
}
STARTED = {
    **{name: steps for name, steps in {**INCOMPLETE, **ENDED}.items() if name not in UNSTARTED},
    "handed back": (hand_back,),
    "retried": (fail, retry),
}


@pytest.mark.parametrize("scope", [{}, {"scope": "any"}, {"scope": "incomplete_or_recent", "window": HOUR}])
@pytest.mark.parametrize("state", UNSTARTED)
def test_job_that_has_not_started_is_changed(store, state, scope):
    first = start("old")
    apply_steps(store, first, UNSTARTED[state])
    assert flags(again("new", deduplicate=scope)) == [(True, True)]
    assert claim(store)[0].input == '"new"'


@pytest.mark.parametrize("state", STARTED)
def test_chain_that_has_started_is_returned_and_not_changed(store, state):
    first = start("old")
    apply_steps(store, first, STARTED[state])
    before = list(Job.objects.order_by("pk").values())
    chain = again("new", delay=2 * HOUR, deduplicate={"scope": "any"})
    assert (chain.id, *flags(chain)) == (first.id, (True, False))
    assert list(Job.objects.order_by("pk").values()) == before


def test_blocked_job_is_changed_and_keeps_its_blockers(store):
    blocker, other = mail.enqueue(), mail.enqueue(delay=HOUR)
    first = ship.enqueue("old", blockers=[blocker], deduplicate=Deduplicate(KEY))
    chain = again("new", delay=HOUR, blockers=[other])
    assert (chain.id, chain.input, chain.status, *flags(chain)) == (first.id, "new", "blocked", (True, True))
    assert list(JobBlocker.objects.values_list("job_id", "blocker_id")) == [(first.id, blocker.id)]
    finish(store, blocker)
    assert abs(first.current_job.run_at - database_now() - HOUR) < NEAR


def test_chain_whose_window_has_passed_is_not_changed(store):
    """So a window limits how long a job can be put off."""
    first = start("old")
    store.db.ahead_seconds = 3_610
    chain = again("new", deduplicate={"window": HOUR})
    assert flags(chain) == [(False, False)]
    assert first.refresh().input == "old"


# Batches


@pytest.mark.parametrize("exists", [False, True])
def test_last_of_equal_keys_in_one_batch_wins(exists):
    if exists:
        start("old", key="a")
    items = [item("one", key="a"), item("two", key="a", delay=HOUR), item("b", key="b"), item("three", ("input",), "a")]
    created = chains.enqueue_many([*items, item("four", (), "a")])
    replaced = (True, True)
    first = replaced if exists else (False, False)
    assert flags(*created) == [first, replaced, (False, False), replaced, (True, False)]
    assert [chain.input for chain in created] == ["three", "three", "b", "three", "three"]
    assert [items[0].input, items[3].input] == ['"one"', '"three"']
    job = created[0].current_job
    assert Job.objects.filter(deduplication_key="a").get() == job
    assert abs(job.run_at - database_now() - HOUR) < NEAR


def test_each_key_of_a_batch_gets_its_own_values():
    chains.enqueue_many([item("old", key=f"{number}") for number in range(50)])
    new = chains.enqueue_many([item(number, key=f"{number}") for number in reversed(range(60))])
    assert {chain.replaced for chain in new[10:]} == {True}
    assert not any(chain.deduplicated for chain in new[:10])
    assert dict(Job.objects.values_list("deduplication_key", "input")) == {f"{number}": number for number in range(60)}


def test_error_in_the_batch_replaces_nothing():
    start("old")
    with pytest.raises(chains.ChainNotFound), transaction.atomic():
        chains.enqueue_many([item("new"), ship.item(blockers=[uuid4()])])
    assert Job.objects.get().input == "old"


# Wake-ups


def test_wakes_workers_if_the_time_changes(store):
    start()
    for new, types in [(item("new", ("input",)), set()), (item(delay=HOUR), {ship.name})]:
        effects = Effects()
        store.jobs.create([new], effects)
        assert effects.due_types == types


@committed
def test_rolled_back_replacement_changes_nothing():
    start("old")
    with transaction.atomic():
        assert again("new").replaced
        transaction.set_rollback(True)
    assert Job.objects.get().input == "old"


# Races


def claimed(store):
    return [(job.input, job.attempt) for job in claim(store)]


@committing
@pytest.mark.parametrize("roll_back", [False, True])
def test_claim_never_starts_the_job_with_values_that_are_being_replaced(store, roll_back):
    start("old")
    replacing = holding(lambda store: again("new"))
    if store.db.locks_rows:
        assert elsewhere(claimed) == []
    claiming = waiting(claimed)
    replacing.go_on(roll_back=roll_back)
    assert replacing.result().replaced
    assert [*claiming.result(), *claimed(store)] == [('"old"' if roll_back else '"new"', 1)]


@committing
def test_claim_that_follows_finds_the_new_time(store):
    start("old")
    replacing = holding(lambda store: again("new", delay=HOUR))
    claiming = waiting(claimed)
    replacing.go_on()
    assert claiming.result() == claimed(store) == []


@committing
@pytest.mark.parametrize("roll_back", [False, True])
def test_job_that_is_being_claimed_keeps_its_values(store, roll_back):
    start("old")
    claiming = holding(claimed)
    replacing = waiting(lambda store: again("new"))
    claiming.go_on(roll_back=roll_back)
    chain = replacing.result()
    assert claiming.result() == [('"old"', 1)]
    assert flags(chain) == [(True, roll_back)]
    assert Job.objects.get().input == ("new" if roll_back else "old")
    assert claiming.conflicts == replacing.conflicts == []


@committing
@pytest.mark.postgresql
@pytest.mark.parametrize("statement", [3, 4])
def test_job_that_is_claimed_before_it_is_locked_keeps_its_values(store, statement):
    """The statements on jobs: find the chain, lock its job, replace its values."""
    start("old")
    replacing = stopped_before(statement - 1, lambda store: again("new"))
    has_locked = statement == 4
    assert elsewhere(claimed) == ([] if has_locked else [('"old"', 1)])
    replacing.go_on()
    assert replacing.result().replaced is has_locked
    assert Job.objects.get().input == ("new" if has_locked else "old")


@committing
@pytest.mark.postgresql
def test_handler_that_enqueues_with_its_own_key_does_not_deadlock(store):
    """It has locked its running job, and waits for the key. A call that has the key does not wait for the job."""
    chain = start("old")
    [job] = claim(store)

    def complete(store):
        with transaction.atomic():
            store.attempts.lock(job.id)
            assert Job.objects.exists()
            return again("successor", deduplicate={"exclude_chain_ids": [chain.id]})

    handler = stopped_before(2, complete)
    replacing = holding(lambda store: again("new"))
    handler.go_on()
    handler.until_blocked_or_ended()
    replacing.go_on()
    assert flags(replacing.result(), handler.result()) == [(True, False), (False, False)]
    assert replacing.conflicts == handler.conflicts == []


@committing
@pytest.mark.postgresql
def test_jobs_of_a_batch_are_locked_in_the_order_of_their_ids(store):
    """As in every other call: a third transaction holds one in the middle, and two calls would deadlock."""
    keys = [f"{number}" for number in range(9)]
    created = chains.enqueue_many([item(key=key) for key in keys])
    ids = [chain.id for chain in created]
    for chain_id in reversed(ids):  # The rows are now stored in the opposite order.
        Job.objects.filter(pk=chain_id).update(run_at=database_now())
    middle = holding(lambda store: chains.reschedule(ids[4], delay=1))
    replacing = waiting(lambda store: chains.enqueue_many([item("new", key=key) for key in reversed(keys)]))
    moving = waiting(lambda store: chains.reschedule(ids, delay=2))
    middle.go_on()
    moving.result()
    assert all(chain.replaced for chain in replacing.result())
    assert middle.conflicts == replacing.conflicts == moving.conflicts == []


@committing
@pytest.mark.postgresql
def test_replacement_that_deadlocks_with_a_transaction_of_the_user_is_retried():
    """It holds the key and waits for the job. The user's transaction has cancelled the job and waits for the key."""
    chain = start("old")

    def in_users_transaction(store):
        with connection.cursor() as cursor:
            cursor.execute("SET deadlock_timeout = '60s'")  # the other transaction detects the deadlock
        with transaction.atomic():
            chains.cancel(chain.id)
            return start("user's")

    replacing = stopped_before(2, lambda store: again("new"))
    user = waiting(in_users_transaction)
    replacing.go_on()
    assert user.result().id == replacing.result().id
    assert len(replacing.conflicts) == 1


@committing
def test_values_that_came_too_late_can_be_enqueued_in_a_chain_of_their_own(store):
    """As in the guide: at most one chain waits, whatever number of chains runs."""

    def enqueue(input):
        started = []
        while True:
            chain = again(input, deduplicate={"exclude_chain_ids": started})
            if chain.replaced or not chain.deduplicated:
                return chain
            started.append(chain.id)

    created = []
    for number in range(3):
        created += [enqueue(number), enqueue(number)]
        run(store, created[-1])
    created += [enqueue("last but one"), enqueue("last")]
    chains.complete(created[2].id)
    created += [enqueue("last")]
    assert [chain.deduplicated for chain in created] == [False, True] * 4 + [True]
    assert [job.input for job in Job.objects.order_by("created_at")] == [0, 1, 2, "last"]


# Arguments

ERRORS = [
    *(({"replace": given}, TypeError, "replace=.* pass a tuple, such as") for given in ("input", None, 5, iter(BOTH))),
    *(
        ({"replace": given}, ValueError, "replace=.* is not one of 'input', 'run_at'")
        for given in (["priority"], [""], [None], ("input", "delay"))
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), ERRORS)
def test_unknown_values_raise_an_error(options, error, message):
    with pytest.raises(error, match=message):
        Deduplicate(KEY, **options)


def test_values_may_be_any_collection():
    assert Deduplicate(KEY, replace=["input"]).replace == Deduplicate(KEY, replace={"input"}).replace == ("input",)
    assert hash(Deduplicate(KEY, replace=list(BOTH)))
