"""``chains.prune``: what ended long ago goes, batch by batch; what is open, young, failed or needed stays."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.models import FailedAttempt, Job, JobBlocker
from django_jobchains.store import Store
from django_jobchains.testing import Clock
from tests.interventions.chains_at import (
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
from tests.store.jobs import failed_try, finished

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
NOW = timedelta(0)


def left() -> set[Any]:
    return set(Job.objects.values_list("chain_id", flat=True))


def finish(chain: Chain) -> Chain:
    with chains.complete(chain.id) as current:
        current.finish("output")
    return chain


def test_completed_and_cancelled_chains_that_ended_so_long_ago_go_and_all_others_stay(
    store: Store, clock: Clock
) -> None:
    old = {name: make(store) for name, make in STATES.items()}
    clock.advance(timedelta(days=10))
    young = {"completed": finish(ship.enqueue()), "cancelled": cancelled(store)}
    blockers = set(JobBlocker.objects.values_list("blocker_id", flat=True))
    assert chains.prune(timedelta(days=9)) == 2
    gone = {old["completed"].id, old["cancelled"].id}
    assert left() == (each(old.values()) | each(young.values()) | blockers) - gone


def test_a_chain_that_ended_a_little_later_stays(store: Store, clock: Clock) -> None:
    completed(store)
    clock.advance(timedelta(days=10))
    assert chains.prune(timedelta(days=10, minutes=1)) == 0
    assert chains.prune(timedelta(days=9, hours=23)) == 1


@pytest.mark.parametrize("status", ["completed", "failed", "cancelled"])
def test_the_statuses_that_are_asked_for_go(store: Store, status: str) -> None:
    made = {name: STATES[name](store) for name in ("completed", "failed", "cancelled", "pending")}
    assert chains.prune(NOW, [status]) == 1
    assert left() == each(made.values()) - {made[status].id}


def test_the_types_that_are_asked_for_go_by_the_type_of_the_chain(store: Store) -> None:
    of_ship = completed(store)
    continued = ship.enqueue()
    go_on(continued)  # with a job of type mail
    finish(continued)
    of_mail = [finish(mail.enqueue()), mail.enqueue()]
    chains.cancel(of_mail[1])
    kept = failed(store)
    assert chains.prune(NOW, types=["shop.mail"]) == 2
    assert left() == each([of_ship, continued, kept])
    assert chains.prune(NOW, ["failed", "completed"], types=[ship, "shop.gone"]) == 3
    assert left() == set()


def test_a_chain_goes_with_all_its_steps_attempts_and_links_and_an_open_one_keeps_them(store: Store) -> None:
    kept, kept_open = failed(store), ship.enqueue()
    go_on(kept_open)
    before = everything()
    blocker, chain = finish(mail.enqueue()), ship.enqueue()
    store.reschedule([failed_try(attempt(store, chain))])
    for _ in range(5):
        go_on(chain)
    go_on(chain, blockers=[blocker])
    finish(chain)
    assert chains.prune(NOW) == 2
    assert everything() == before
    assert FailedAttempt.objects.get().job_id == kept.id


@pytest.mark.parametrize("batch", [1, 2, 3, 7, 1_000])
@pytest.mark.parametrize("types", [None, ["shop.ship", "shop.mail"]])
def test_however_small_the_batches_all_go_and_what_stays_is_passed_over(
    store: Store, batch: int, types: list[str] | None
) -> None:
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
    assert left() == each(kept)


def test_ids_of_ones_own_are_found_wherever_they_lie(store: Store) -> None:
    ids = [UUID(int=1), uuid4(), uuid4(), UUID(int=2**128 - 1)]
    for id_ in ids:
        finish(ship.enqueue(id=id_))
    assert chains.prune(NOW, batch=1) == 4
    assert left() == set()


class TestWhatAJobNeeds:
    @pytest.mark.parametrize("status", ["blocked", "pending", "running", "failed", "cancelled"])
    def test_stays_while_that_is_not_completed(self, store: Store, status: str) -> None:
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
                store.fail([failed_try(job)])
        assert dependent.refresh().status == status
        assert chains.prune(NOW, types=["shop.mail"]) == 0
        assert left() == each([blocker, dependent])

    def test_goes_when_that_is_completed(self, store: Store) -> None:
        blocker = mail.enqueue()
        dependent = ship.enqueue(blockers=[blocker])
        finish(blocker)
        go_on(dependent)
        assert chains.prune(NOW) == 1
        assert left() == {dependent.id}

    @pytest.mark.parametrize("batch", [1, 2, 1_000])
    def test_goes_with_it_whichever_is_older(self, store: Store, batch: int) -> None:
        """A chain that was cancelled while it waited needs its blocker until it is deleted itself."""
        older, dependent = finish(mail.enqueue()), ship.enqueue()
        go_on(dependent, blockers=[older, mail.enqueue()])
        chains.cancel(dependent)
        last = ship.enqueue(blockers=[dependent])
        chains.cancel(last)
        pending_blocker = Job.objects.with_status("pending").get().chain_id
        assert chains.prune(NOW, batch=batch) == 3
        assert left() == {pending_blocker}

    def test_stays_with_what_that_needs_in_turn(self, store: Store) -> None:
        first = mail.enqueue()
        second = ship.enqueue(blockers=[first])
        third = ship.enqueue(blockers=[second])
        chains.cancel([first, second])
        assert third.refresh().status == "blocked"
        assert chains.prune(NOW) == 0
        assert left() == each([first, second, third])


def test_a_dry_run_counts_and_deletes_nothing(store: Store) -> None:
    for _ in range(5):
        completed(store)
    needed = mail.enqueue()
    ship.enqueue(blockers=[needed])
    finish(needed)
    before = everything()
    assert chains.prune(NOW, batch=2, dry_run=True) == 5
    assert everything() == before


def test_each_batch_reports_how_many_are_gone_and_how_far_it_is(
    store: Store, reported: tuple[list[tuple[int, float]], Callable[[int, float], None]]
) -> None:
    for _ in range(6):
        completed(store)
    told, on_batch = reported
    assert chains.prune(NOW, batch=2, on_batch=on_batch) == 6
    deleted, shares = [count for count, _ in told], [share for _, share in told]
    assert deleted[:3] == [2, 4, 6]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert all(0 <= share <= 1 for share in shares)


def test_nothing_to_do_is_zero(store: Store) -> None:
    running(store)
    assert chains.prune(timedelta.max) == chains.prune(DAY) == chains.prune(NOW) == 0


def test_in_a_transaction_of_the_callers_it_is_undone_with_it(store: Store) -> None:
    from django.db import transaction

    completed(store)
    before = everything()
    with transaction.atomic():
        assert chains.prune(NOW) == 1
        assert not Job.objects.exists()
        transaction.set_rollback(True)
    assert everything() == before


@pytest.mark.django_db(transaction=True, available_apps=["django_jobchains"])
def test_async_code_has_it_too(store: Store) -> None:
    store.finish([finished(attempt(store, ship.enqueue()))])
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
def test_what_cannot_be_meant_is_refused(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        chains.prune(**arguments)
