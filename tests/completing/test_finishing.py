"""``chains.complete`` finishes the job a chain is at, whatever its status, or says why it cannot."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from django.db import transaction

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainNotFound, JobAlreadyCompleted, JobNotCompletable, JobTypeMismatch
from django_jobchains.exceptions import InvalidOutput
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import JobType, get_registry
from tests.attempts.conftest import second_alias
from tests.attempts.work import committed
from tests.completing.work import (
    ENDED,
    OPEN,
    approval,
    backing_off,
    blocked,
    cancelled,
    completed,
    failed,
    finish,
    gone,
    pending,
    rows,
    running,
    typed,
)
from tests.shop.models import Effect

__all__ = ("second_alias",)

pytestmark = pytest.mark.django_db

each_open = pytest.mark.parametrize("make", OPEN)


@pytest.mark.parametrize("make", OPEN + ENDED)
def test_doing_nothing_changes_nothing(make: Callable[[], Chain]) -> None:
    chain = make()
    before = rows()
    with chains.complete(chain.id, approval) as current:
        assert (current.job.id, current.job.status) == (chain.current_job.id, chain.status)
    assert rows() == before


@each_open
def test_a_job_that_has_not_ended_is_finished(make: Callable[[], Chain]) -> None:
    chain = make()
    before = chain.current_job
    finish(chain, {"approved": True})
    job = chain.refresh().current_job
    assert (chain.status, chain.output) == ("completed", {"approved": True})
    assert (job.status, job.output, job.completed_by) == ("completed", {"approved": True}, None)
    assert (job.leased_by, job.leased_until, job.last_error) == (None, None, None)
    assert (job.attempt, job.lease_number) == (before.attempt, before.lease_number)
    assert job.finished_at is not None
    assert job.finished_at >= job.created_at


def test_only_the_chains_own_row_changes() -> None:
    chain = pending()
    others = [make() for make in OPEN + ENDED]
    ids = [other.id for other in others]
    before = list(Job.objects.filter(chain_id__in=ids).order_by("pk").values())
    finish(chain)
    assert list(Job.objects.filter(chain_id__in=ids).order_by("pk").values()) == before


def test_the_history_of_its_attempts_stays() -> None:
    chain = backing_off()
    finish(chain)
    assert [(attempt.job_id, attempt.error) for attempt in FailedAttempt.objects.all()] == [(chain.id, "Boom: no")]


def test_a_job_that_was_blocked_stays_finished_when_its_blocker_ends() -> None:
    chain = blocked()
    blocker = Chain.objects.of_type(typed.name).get()
    finish(chain, "not waited")
    after = Job.objects.values().get(pk=chain.id)
    finish(blocker, 1)
    assert Job.objects.values().get(pk=chain.id) == after
    chains.delete(blocker.id)  # nobody needs it


@pytest.mark.parametrize("job_type", [None, approval, approval.name])
def test_the_type_may_be_named(job_type: Any) -> None:
    chain = pending()
    finish(chain, "done", job_type)
    assert chain.refresh().output == "done"


@pytest.mark.parametrize("job_type", [typed, "completing.nowhere"])
@pytest.mark.parametrize("make", [pending, completed])
def test_another_type_is_an_error_that_names_both(make: Callable[[], Chain], job_type: Any) -> None:
    chain = make()
    before = rows()
    expected = job_type if isinstance(job_type, str) else job_type.name
    with pytest.raises(JobTypeMismatch, match=f"'completing.approval', not a '{expected}'") as caught:
        finish(chain, "done", job_type)
    error = caught.value
    assert (error.job_id, error.expected, error.actual) == (chain.id, expected, "completing.approval")
    assert rows() == before


def test_a_chain_that_is_not_there_is_not_found() -> None:
    id_ = uuid4()
    with pytest.raises(ChainNotFound, match=str(id_)) as caught, chains.complete(id_):
        raise AssertionError("the block of no chain")
    assert caught.value.chain_id == id_


def test_a_step_is_no_chain() -> None:
    chain = pending()
    with chains.complete(chain.id) as current:
        current.continue_with(approval)
        step = current.job.id
    with pytest.raises(ChainNotFound), chains.complete(step):
        pass


def use_finish(current: chains.CurrentJob) -> None:
    current.finish("again")


def use_continue_with(current: chains.CurrentJob) -> None:
    current.continue_with(approval)


@pytest.mark.parametrize("use", [use_finish, use_continue_with])
def test_what_is_completed_stays_so(use: Callable[[chains.CurrentJob], None]) -> None:
    chain = completed()
    before = rows()
    with pytest.raises(JobAlreadyCompleted, match=str(chain.id)) as caught, chains.complete(chain.id) as current:
        use(current)
    assert caught.value.job_id == chain.id
    assert rows() == before


@pytest.mark.parametrize("use", [use_finish, use_continue_with])
@pytest.mark.parametrize("make", [failed, cancelled])
def test_what_failed_or_was_cancelled_is_retried_first(
    make: Callable[[], Chain], use: Callable[[chains.CurrentJob], None]
) -> None:
    chain = make()
    before = rows()
    message = f"is {chain.status}: use chains.retry first"
    with pytest.raises(JobNotCompletable, match=message) as caught, chains.complete(chain.id) as current:
        use(current)
    assert (caught.value.job_id, caught.value.status) == (chain.id, chain.status)
    assert rows() == before
    chains.retry(chain.id)
    finish(chain, "done")
    assert chain.refresh().output == "done"


class TestOutputs:
    def test_it_is_the_types(self) -> None:
        chain = typed.enqueue(1)
        finish(chain, 2)
        assert chain.refresh().output == 2

    @pytest.mark.parametrize("output", ["two", None, float("nan"), object()])
    def test_another_is_an_error_and_changes_nothing(self, output: Any) -> None:
        chain = typed.enqueue(1)
        before = rows()
        with pytest.raises(InvalidOutput):
            finish(chain, output)
        assert rows() == before

    def test_after_an_invalid_one_the_block_may_try_another(self) -> None:
        chain = typed.enqueue(1)
        with chains.complete(chain.id) as current:
            with pytest.raises(InvalidOutput):
                current.finish("two")
            current.finish(2)
        assert chain.refresh().output == 2

    def test_it_may_be_an_object_of_the_type(self, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("pydantic")
        decision: JobType[Any, Decision] = JobType("completing.decision", output=Decision)
        monkeypatch.setitem(get_registry().declared, decision.name, decision)
        chain = decision.enqueue()
        with pytest.raises(InvalidOutput):
            finish(chain, {"by": "me", "approved": "perhaps"})
        finish(chain, Decision("me", approved=True))
        assert chain.refresh().output == {"by": "me", "approved": True}

    def test_without_a_type_any_json_will_do(self) -> None:
        chain = gone.enqueue()
        with pytest.raises(InvalidOutput):
            finish(chain, {"a": object()})
        finish(chain, {"a": [1]}, gone.name)
        assert chain.refresh().output == {"a": [1]}


@dataclass(frozen=True)
class Decision:
    by: str
    approved: bool


class TestTransactions:
    def test_an_exception_undoes_the_block_with_the_users_rows(self) -> None:
        chain = running()
        before = rows()
        with pytest.raises(ZeroDivisionError), chains.complete(chain.id) as current:
            Effect.objects.create(job_id=chain.id, label="undone")
            current.continue_with(typed, 1)
            current.finish(2)
            raise ZeroDivisionError
        assert rows() == before

    def test_it_commits_with_the_users_rows(self) -> None:
        chain = pending()
        with chains.complete(chain.id) as current:
            Effect.objects.create(job_id=current.job.id, label="done")
            current.finish()
        assert Effect.objects.get().job_id == chain.id

    def test_it_joins_the_callers_transaction(self) -> None:
        chain, kept = pending(), pending()
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            finish(chain)
            raise ZeroDivisionError
        with transaction.atomic():
            finish(kept)
            with pytest.raises(ZeroDivisionError), chains.complete(chain.id) as current:
                current.finish()
                raise ZeroDivisionError  # undoes the inner block alone
        assert (chain.refresh().status, kept.refresh().status) == ("pending", "completed")

    def test_an_error_that_the_block_catches_undoes_nothing_else(self) -> None:
        chain = pending()
        with chains.complete(chain.id) as current:
            Effect.objects.create(job_id=chain.id, label="kept")
            current.finish("first")
            with pytest.raises(JobAlreadyCompleted):
                current.finish("second")
        assert chain.refresh().output == "first"
        assert Effect.objects.count() == 1

    def test_after_a_savepoint_is_undone_the_current_job_is_the_one_before(self) -> None:
        chain = pending()
        with chains.complete(chain.id) as current:
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                current.continue_with(typed, 1)
                raise ZeroDivisionError
            assert current.job.id == chain.id
            current.finish("done")
        assert (chain.refresh().output, chain.jobs.count()) == ("done", 1)


class TestAnotherDatabase:
    pytestmark = committed

    def test_using_names_it(self, second_alias: str) -> None:
        chain = approval.enqueue(using=second_alias)
        with pytest.raises(ChainNotFound):
            finish(chain)
        with chains.complete(chain.id, approval, using=second_alias) as current:
            current.continue_with(typed, 1)
            assert current.job.input == 1
            current.finish(2)
        assert chain.refresh().output == 2
        assert not Job.objects.exists()
