"""Fan-in: a job that waits for chains starts when they have ended, not before, and once."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest
from django.db import transaction

from django_jobchains.exceptions import ChainNotFound, InvalidBlockers
from django_jobchains.ids import new_id
from django_jobchains.models import JobBlocker
from django_jobchains.store import ClaimedJob, Effects, Store
from django_jobchains.testing.contracts.jobs import (
    MAIL,
    SHIP,
    claim,
    create,
    failed_try,
    finished,
    new_job,
    next_job,
    running,
    running_job,
    statuses,
    stored,
)
from django_jobchains.testing.contracts.storing import StoreTests, committing

BOTH_ORDERS = pytest.mark.parametrize("turned", [False, True], ids=["first", "second"])


def waiting_for(store: Store, *blockers: ClaimedJob, **changes: Any) -> UUID:
    (job_id,) = create(store, 1, MAIL, blockers=tuple(job.chain_id for job in blockers), **changes)
    return job_id


class Blocking(StoreTests):
    def test_a_job_waits_for_its_blockers_and_starts_when_the_last_has_ended(self, store: Store) -> None:
        first, second = running(store, 2)
        job_id, effects = waiting_for(store, first, second), Effects()
        assert statuses(store, job_id) == ["blocked"]
        store.finish([finished(first)])
        assert (statuses(store, job_id), claim(store)) == (["blocked"], [])
        store.finish([finished(second)], effects)
        assert effects.due_counts == {MAIL: 1}
        assert effects.finished_chains == {second.chain_id}
        assert [job.id for job in claim(store)] == [job_id]

    def test_blockers_that_have_ended_are_not_waited_for(self, store: Store) -> None:
        done = running_job(store)
        store.finish([finished(done)])
        job_id = waiting_for(store, done)
        assert statuses(store, job_id) == ["pending"]
        links = JobBlocker.objects.using(store.using).values_list("job_id", "position", "blocker_id", "is_open")
        assert list(links) == [(job_id, 0, done.chain_id, False)]

    def test_a_future_date_survives_the_wait(self, store: Store) -> None:
        blocker = running_job(store)
        job_id = waiting_for(store, blocker, delay_seconds=600)
        run_at = stored(store, job_id).run_at
        store.finish([finished(blocker)])
        saved = stored(store, job_id)
        assert (saved.status, saved.run_at) == ("pending", run_at)

    def test_a_chain_that_goes_on_has_not_ended(self, store: Store) -> None:
        blocker = running_job(store)
        job_id = waiting_for(store, blocker)
        store.finish([finished(blocker, None, next_job(blocker))])
        assert statuses(store, job_id) == ["blocked"]
        (last,) = claim(store)
        store.finish([finished(last)])
        assert statuses(store, job_id) == ["pending"]

    def test_a_continuation_waits_too(self, store: Store) -> None:
        job, blocker = running(store, 2)
        step = next_job(job, blockers=(blocker.chain_id,))
        store.finish([finished(job, None, step)])
        assert statuses(store, step.id) == ["blocked"]
        store.finish([finished(blocker)])
        assert statuses(store, step.id) == ["pending"]

    @pytest.mark.parametrize("ends", ["fail", "cancel"])
    def test_a_job_says_what_becomes_of_it_when_a_blocker_fails(self, store: Store, ends: str) -> None:
        blocker, effects = running_job(store), Effects()
        waits, fails, runs = (waiting_for(store, blocker, on_blocker_failure=what) for what in ("wait", "fail", "run"))
        (behind,) = create(store, blockers=(fails,), on_blocker_failure="fail")
        if ends == "cancel":
            store.cancel([blocker.chain_id], Effects())
        store.fail([failed_try(blocker)], effects)
        assert statuses(store, waits, fails, runs, behind) == ["blocked", "failed", "pending", "failed"]
        assert effects.finished_chains == {blocker.chain_id, fails, behind}

    def test_a_blocker_that_is_retried_frees_who_still_waits(self, store: Store) -> None:
        blocker = running_job(store)
        job_id = waiting_for(store, blocker)
        store.fail([failed_try(blocker)])
        store.retry([blocker.id], Effects())
        (again,) = claim(store)
        store.finish([finished(again)])
        assert statuses(store, job_id) == ["pending"]

    def test_a_blocker_that_cannot_be_is_refused_and_nothing_is_created(self, store: Store) -> None:
        blocker = running_job(store)
        known, unknown, itself = blocker.chain_id, new_id(), new_id()
        refused: list[tuple[type[Exception], dict[str, Any]]] = [
            (ChainNotFound, {"blockers": (known, unknown)}),
            (InvalidBlockers, {"blockers": (known, known)}),
            (InvalidBlockers, {"id": itself, "blockers": (itself,)}),
            (InvalidBlockers, {"blockers": (known,), "accepted_blockers": frozenset({MAIL})}),
        ]
        for error, values in refused:
            with pytest.raises(error), transaction.atomic(using=store.using):
                store.create([new_job(), new_job(**values)])
        assert claim(store) == []
        accepted = new_job(blockers=(known,), accepted_blockers=frozenset({SHIP, MAIL}))
        assert len(store.create([accepted])) == 1

    def test_chains_cannot_wait_for_each_other(self, store: Store) -> None:
        first, second = running(store, 2)
        store.finish([finished(first, None, next_job(first, blockers=(second.chain_id,)))])
        circle = next_job(second, blockers=(first.chain_id,))
        with pytest.raises(InvalidBlockers), transaction.atomic(using=store.using):
            store.finish([finished(second, None, circle)])
        assert statuses(store, second) == ["running"]

    def test_the_sweeper_frees_who_waits_for_nothing_and_nobody_else(self, store: Store) -> None:
        """There is none; a store that was wrong once leaves one."""
        done, open_ = running(store, 2)
        stuck, waits = waiting_for(store, open_), waiting_for(store, open_)
        store.finish([finished(done)])
        assert store.sweep(10, None, Effects()) == ([], None)
        JobBlocker.objects.using(store.using).filter(job_id=stuck).update(blocker=done.chain_id)
        assert store.sweep(10, None, Effects()) == ([stuck], None)
        assert statuses(store, stuck, waits) == ["pending", "blocked"]

    @committing
    @BOTH_ORDERS
    def test_the_last_two_blockers_that_end_at_once_free_the_job(self, store: Store, turned: bool) -> None:
        """Each must see what the other did: so both lock the job that waits, and then look."""
        first, second = running(store, 2)[:: -1 if turned else 1]
        job_id = waiting_for(store, *sorted((first, second)))
        ends = self.holding(store, lambda: store.finish([finished(first)]))
        ends_too = self.waiting(store, lambda: store.finish([finished(second)]))
        assert (ends.result(), ends_too.result()) == ({first.key}, {second.key})
        assert statuses(store, job_id) == ["pending"], "Each took the other for open: nobody frees the job any more."

    @committing
    @BOTH_ORDERS
    def test_a_job_that_is_created_while_its_blocker_ends_starts(self, store: Store, turned: bool) -> None:
        blocker = running_job(store)

        def finish() -> Any:
            return store.finish([finished(blocker)])

        calls: list[Callable[[], Any]] = [
            finish,
            lambda: waiting_for(store, blocker),
        ]
        first, second = calls[:: -1 if turned else 1]
        before = self.holding(store, first)
        after = self.waiting(store, second)
        results = [before.result(), after.result()]
        (job_id,) = (result for result in results if isinstance(result, UUID))
        finish()  # a second time, if it skipped the blocker, which was locked
        assert statuses(store, job_id) == ["pending"]

    @committing
    @BOTH_ORDERS
    def test_a_job_that_is_created_while_its_blocker_goes_on_waits(self, store: Store, turned: bool) -> None:
        blocker = running_job(store)

        def go_on() -> Any:
            return store.finish([finished(blocker, None, next_job(blocker))])

        calls: list[Callable[[], Any]] = [
            go_on,
            lambda: waiting_for(store, blocker),
        ]
        first, second = calls[:: -1 if turned else 1]
        before = self.holding(store, first)
        after = self.waiting(store, second)
        results = [before.result(), after.result()]
        (job_id,) = (result for result in results if isinstance(result, UUID))
        assert statuses(store, job_id) == ["blocked"]
        go_on()
        assert statuses(store, job_id) == ["blocked"]
        store.finish([finished(last) for last in claim(store)])
        assert statuses(store, job_id) == ["pending"]
