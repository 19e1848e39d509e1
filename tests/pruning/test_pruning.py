"""``chains.prune`` deletes old chains in batches, and keeps open, recent, failed and needed ones."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from tests.support.chains import (
    STATES,
    attempt,
    cancelled,
    completed,
    each,
    everything,
    failed,
    go_on,
    mail,
    pending,
    running,
    ship,
)
from tests.support.jobs import claim, failed_try, finished

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
NOW = timedelta(0)


def chain_ids():
    return set(Job.objects.values_list("chain_id", flat=True))


def finish(chain):
    chains.complete(chain.id, "output")
    return chain


def test_only_old_completed_and_cancelled_chains_are_deleted(store, clock):
    old = {name: make(store) for name, make in STATES.items()}
    clock.advance(timedelta(days=10))
    young = {"completed": finish(ship.enqueue()), "cancelled": cancelled(store)}
    blockers = set(JobBlocker.objects.values_list("blocker_id", flat=True))
    assert chains.prune(timedelta(days=9)) == 2
    gone = {old["completed"].id, old["cancelled"].id}
    assert chain_ids() == (each(old.values()) | each(young.values()) | blockers) - gone


class TestRetentionSettings:
    """``chains.prune`` without ``older_than``."""

    @pytest.fixture(autouse=True)
    def _retention(self, settings):
        settings.JOBCHAINS = {"RETENTION_COMPLETED_SECONDS": 3 * 86_400, "RETENTION_FAILED_SECONDS": 6 * 86_400}

    def test_each_status_has_its_own_retention(self, store, clock):
        made = {name: STATES[name](store) for name in ("completed", "failed", "cancelled", "pending")}
        for days, gone in ((2, []), (2, ["completed"]), (3, ["failed"]), (24, ["cancelled"])):
            clock.advance(days * DAY)
            assert chains.prune(dry_run=True) == len(gone)
            assert chains.prune() == len(gone)
            assert chain_ids() == each(made.values()) - {made.pop(name).id for name in gone}

    def test_statuses_and_types_restrict_the_prune(self, store, clock):
        of_ship, of_mail, of_failed = completed(store), finish(mail.enqueue()), failed(store)
        clock.advance(7 * DAY)
        assert chains.prune(types=["shop.mail", "shop.gone"]) == 1
        assert chain_ids() == each([of_ship, of_failed]) != each([of_mail])
        assert chains.prune(statuses=["failed"], types=ship) == 1
        assert chain_ids() == {of_ship.id}
        assert chains.prune(statuses="completed") == 1

    def test_chains_of_undeclared_types_are_kept(self, store, clock):
        chain = completed(store)
        Job.objects.update(chain_type_name="shop.gone", type_name="shop.gone")
        clock.advance(7 * DAY)
        assert chains.prune() == chains.prune(types=["shop.gone"]) == 0
        assert chain_ids() == {chain.id}

    def test_matching_key_keeps_its_chain_unless_older_than_is_given(self, store, clock):
        keyed = [finish(ship.enqueue(deduplicate=Deduplicate(scope, scope))) for scope in ("any", "incomplete")]
        clock.advance(7 * DAY)
        assert chains.prune() == 1
        assert chain_ids() == {keyed[0].id}
        assert chains.prune(7 * DAY - timedelta(hours=1)) == 1

    def test_chain_is_deleted_with_the_one_that_needed_it(self, store, clock):
        blocker = finish(mail.enqueue())
        ship.enqueue(blockers=[blocker])
        store.attempts.fail([failed_try(job) for job in claim(store)])
        clock.advance(7 * DAY)
        assert chains.prune() == 2
        assert not chain_ids()


def test_types_are_those_of_chains_not_of_jobs(store):
    of_ship = completed(store)
    continued = ship.enqueue()
    go_on(continued)  # with a job of type mail
    finish(continued)
    of_mail = [finish(mail.enqueue()), mail.enqueue()]
    chains.cancel(of_mail[1])
    kept = failed(store)
    assert chains.prune(NOW, types=["shop.mail"]) == 2
    assert chain_ids() == each([of_ship, continued, kept])
    assert chains.prune(NOW, ["failed", "completed"], types=[ship, "shop.gone"]) == 3
    assert chain_ids() == set()


def test_related_rows_are_deleted_with_their_chain_only(store):
    kept, kept_open = failed(store), ship.enqueue()
    go_on(kept_open)
    before = everything()
    blocker, chain = finish(mail.enqueue()), ship.enqueue()
    store.attempts.reschedule([failed_try(attempt(store, chain))])
    for _ in range(5):
        go_on(chain)
    go_on(chain, blockers=[blocker])
    finish(chain)
    assert chains.prune(NOW) == 2
    assert everything() == before
    assert FailedAttempt.objects.get().job_id == kept.id


@pytest.mark.parametrize(
    ("batch", "types"), [(1, None), (3, ["shop.ship", "shop.mail"]), (7, None), (1_000, ["shop.ship", "shop.mail"])]
)
def test_batches_of_any_size_delete_everything_that_is_due(store, batch, types):
    kept, gone = [], []
    for _ in range(4):
        kept += [pending(store), failed(store)]
        gone += [completed(store), cancelled(store)]
        long = ship.enqueue()
        for _ in range(3):
            go_on(long)
        gone.append(finish(long))
        young = ship.enqueue()
        for _ in range(3):
            go_on(young)
        kept.append(young)
    assert chains.prune(NOW, types=types, batch=batch) == len(gone)
    assert chain_ids() == each(kept)


def test_custom_ids_are_found(store):
    ids = [UUID(int=1), uuid4(), uuid4(), UUID(int=2**128 - 1)]
    for id_ in ids:
        finish(ship.enqueue(id=id_))
    assert chains.prune(NOW, batch=1) == 4
    assert chain_ids() == set()


class TestNeededBlockers:
    @pytest.mark.parametrize("status", ["blocked", "pending", "running", "failed", "cancelled"])
    def test_blocker_is_kept_while_its_dependent_is_not_completed(self, store, status):
        blocker = mail.enqueue()
        dependent = ship.enqueue(blockers=[blocker])
        if status == "cancelled":
            chains.cancel(dependent)
            chains.cancel(blocker)
        elif status == "blocked":
            chains.cancel(blocker)
        else:
            finish(blocker)
        if status in ("running", "failed"):
            job = attempt(store, dependent)
            if status == "failed":
                store.attempts.fail([failed_try(job)])
        assert dependent.refresh().status == status
        assert chains.prune(NOW, types=["shop.mail"]) == 0
        assert chain_ids() == each([blocker, dependent])

    def test_blocker_is_deleted_after_its_dependent_has_completed(self, store):
        blocker = mail.enqueue()
        dependent = ship.enqueue(blockers=[blocker])
        finish(blocker)
        go_on(dependent)
        assert chains.prune(NOW) == 1
        assert chain_ids() == {dependent.id}

    @pytest.mark.parametrize("batch", [1, 2, 1_000])
    def test_blocker_is_deleted_together_with_its_dependent(self, store, batch):
        """A chain that was cancelled while it was blocked needs its blocker until it is deleted itself."""
        older, dependent = finish(mail.enqueue()), ship.enqueue()
        go_on(dependent, blockers=[older, mail.enqueue()])
        chains.cancel(dependent)
        last = ship.enqueue(blockers=[dependent])
        chains.cancel(last)
        pending_blocker = Job.objects.with_status("pending").get().chain_id
        assert chains.prune(NOW, batch=batch) == 3
        assert chain_ids() == {pending_blocker}

    def test_needed_chains_are_kept_transitively(self, store):
        first = mail.enqueue()
        second = ship.enqueue(blockers=[first])
        third = ship.enqueue(blockers=[second])
        chains.cancel([first, second])
        assert third.refresh().status == "blocked"
        assert chains.prune(NOW) == 0
        assert chain_ids() == each([first, second, third])


def test_dry_run_only_counts(store):
    for _ in range(5):
        completed(store)
    needed = mail.enqueue()
    ship.enqueue(blockers=[needed])
    finish(needed)
    before = everything()
    assert chains.prune(NOW, batch=2, dry_run=True) == 5
    assert everything() == before


def test_on_batch_receives_the_count_and_the_share(store, recorded_batches):
    for _ in range(6):
        completed(store)
    reports, on_batch = recorded_batches
    assert chains.prune(NOW, batch=2, on_batch=on_batch) == 6
    deleted, shares = [count for count, _ in reports], [share for _, share in reports]
    assert deleted[:3] == [2, 4, 6]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert all(0 <= share <= 1 for share in shares)


def test_prune_without_matching_chains_returns_zero(store):
    running(store)
    assert chains.prune(timedelta.max) == chains.prune(DAY) == chains.prune(NOW) == 0


def test_prune_is_rolled_back_with_the_transaction(store):
    completed(store)
    before = everything()
    with transaction.atomic():
        assert chains.prune(NOW) == 1
        assert not Job.objects.exists()
        transaction.set_rollback(True)
    assert everything() == before


@pytest.mark.django_db(transaction=True)
def test_async_prune(store):
    store.attempts.finish([finished(attempt(store, ship.enqueue()))])
    assert async_to_sync(chains.aprune)(NOW) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"older_than": timedelta(seconds=-1)}, ValueError, "0 or more"),
        ({"older_than": 30}, TypeError, "timedelta, not int"),
        ({"older_than": DAY, "statuses": ["running"]}, ValueError, "'running'.*cancelled, completed, failed"),
        ({"older_than": DAY, "statuses": "done"}, ValueError, "'done'"),
        ({"older_than": DAY, "batch": 0}, ValueError, "1 to 10000"),
        ({"older_than": DAY, "batch": 10_001}, ValueError, "1 to 10000"),
    ],
)
def test_invalid_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        chains.prune(**arguments)
