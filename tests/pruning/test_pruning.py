"""``chains.prune`` deletes old chains in batches, and keeps open, recent, failed and needed ones."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.models import Job, JobBlocker
from tests.support.chains import STATES, attempt, cancelled, completed, each, everything, failed, go_on, mail, ship
from tests.support.jobs import finished

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


def test_statuses_and_types_of_chains_restrict_the_prune(store):
    of_ship, of_failed, continued = completed(store), failed(store), ship.enqueue()
    go_on(continued)  # with a job of type mail
    finish(continued)
    finish(mail.enqueue())
    assert chains.prune(NOW, types=["shop.mail", "shop.gone"]) == 1
    assert chain_ids() == each([of_ship, of_failed, continued])
    assert chains.prune(NOW, statuses=["failed"], types=ship) == 1
    assert chains.prune(NOW, statuses="completed", types=[ship, "shop.gone"]) == 2


@pytest.mark.parametrize("types", [None, ["shop.ship", "shop.mail"]])
@pytest.mark.parametrize("batch", [1, 3, 1_000])
def test_batches_of_any_size_delete_everything_that_is_due(store, batch, types):
    """Explicit ids need not be in the order of time. A chain needs its blocker until it is deleted itself."""
    kept, gone = [], [finish(ship.enqueue(id=id_)) for id_ in (UUID(int=1), uuid4(), uuid4(), UUID(int=2**128 - 1))]
    for _ in range(2):
        finished_, open_, waiting = (ship.enqueue() for _ in range(3))
        for chain in (finished_, open_, finished_, open_):
            go_on(chain)
        go_on(waiting, blockers=[finished_, open_])
        chains.cancel([waiting, last := ship.enqueue(blockers=[waiting])])
        kept += [failed(store), open_]
        gone += [finish(finished_), cancelled(store), waiting, last]
    assert chains.prune(NOW, types=types, batch=batch) == len(gone)
    assert chain_ids() == each(kept)


def test_dry_run_only_counts(store):
    for _ in range(5):
        completed(store)
    ship.enqueue(blockers=[needed := mail.enqueue()])
    finish(needed)
    before = everything()
    assert chains.prune(NOW, batch=2, dry_run=True) == 5
    assert everything() == before


def test_on_batch_receives_the_count_and_the_share(store):
    for _ in range(6):
        completed(store)
    reports = []
    assert chains.prune(NOW, batch=2, on_batch=lambda *report: reports.append(report)) == 6
    deleted, shares = zip(*reports, strict=True)
    assert deleted[:3] == (2, 4, 6)
    assert list(shares) == sorted(shares)
    assert shares[0] >= 0
    assert shares[-1] == 1


def test_prune_without_matching_chains_returns_zero(store):
    failed(store)
    assert chains.prune(timedelta.max) == chains.prune(DAY) == chains.prune(NOW) == 0


@pytest.mark.django_db(transaction=True)
def test_async_prune(store):
    store.attempts.finish([finished(attempt(store, ship.enqueue()))])
    assert async_to_sync(chains.aprune)(NOW) == 1


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"older_than": timedelta(seconds=-1)}, ValueError, "0 or more"),
        ({"older_than": 30}, TypeError, "timedelta or a text such as '30d', not int"),
        ({"older_than": DAY, "statuses": ["running"]}, ValueError, "'running'.*completed, failed, cancelled"),
        ({"older_than": DAY, "statuses": "done"}, ValueError, "'done'"),
        ({"older_than": DAY, "batch": 0}, ValueError, "1 to 10000"),
        ({"older_than": DAY, "batch": 10_001}, ValueError, "1 to 10000"),
    ],
)
def test_invalid_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        chains.prune(**arguments)
