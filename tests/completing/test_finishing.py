"""``chains.complete`` and ``current_job`` finish the current job of a chain, whatever its status, or raise an error."""

from dataclasses import dataclass
from uuid import uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, transaction

from django_jobchains import chains
from django_jobchains.chains import Chain, ChainNotFound, JobAlreadyCompleted, JobNotCompletable, JobTypeMismatch
from django_jobchains.exceptions import InvalidOutput
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.processors import JobType, get_registry
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
from tests.store.test_retries import CONFLICT, failing
from tests.support.attempts import committed

pytestmark = pytest.mark.django_db

each_open = pytest.mark.parametrize("make", OPEN)


@pytest.mark.parametrize("make", OPEN + ENDED)
def test_an_empty_block_changes_nothing(make):
    chain = make()
    before = rows()
    with chains.current_job(chain.id, approval) as current:
        assert (current.job.id, current.job.status) == (chain.current_job.id, chain.status)
    assert rows() == before


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("complete", [chains.complete, async_to_sync(chains.acomplete)])
def test_complete_is_run_again_after_a_conflict(complete):
    chain = pending()
    with failing(1, CONFLICT):
        assert complete(chain.id, "ok").output == "ok"
    with failing(1, CONFLICT), pytest.raises(OperationalError), transaction.atomic():
        complete(pending().id)


@each_open
def test_a_job_that_has_not_ended_is_finished(make):
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


def test_other_chains_do_not_change():
    chain = pending()
    others = [make() for make in OPEN + ENDED]
    ids = [other.id for other in others]
    before = list(Job.objects.filter(chain_id__in=ids).order_by("pk").values())
    finish(chain)
    assert list(Job.objects.filter(chain_id__in=ids).order_by("pk").values()) == before


def test_failed_attempts_are_kept():
    chain = backing_off()
    finish(chain)
    assert [(attempt.job_id, attempt.error) for attempt in FailedAttempt.objects.all()] == [(chain.id, "Boom: no")]


def test_a_blocked_job_that_was_completed_does_not_change_when_its_blocker_ends():
    chain = blocked()
    blocker = Chain.objects.of_type(typed.name).get()
    finish(chain, "not waited")
    after = Job.objects.values().get(pk=chain.id)
    finish(blocker, 1)
    assert Job.objects.values().get(pk=chain.id) == after
    chains.delete(blocker.id)  # no job needs it any more


@pytest.mark.parametrize("job_type", [None, approval, approval.name])
def test_the_expected_type_may_be_given(job_type):
    chain = pending()
    finish(chain, "done", job_type)
    assert chain.refresh().output == "done"


@pytest.mark.parametrize("job_type", [typed, "completing.nowhere"])
@pytest.mark.parametrize("make", [pending, completed])
def test_another_type_is_an_error_that_names_both(make, job_type):
    chain = make()
    before = rows()
    expected = job_type if isinstance(job_type, str) else job_type.name
    with pytest.raises(JobTypeMismatch, match=f"'completing.approval', not '{expected}'") as caught:
        finish(chain, "done", job_type)
    error = caught.value
    assert (error.job_id, error.expected, error.actual) == (chain.id, expected, "completing.approval")
    assert rows() == before


def test_an_unknown_chain_is_not_found():
    id_ = uuid4()
    with pytest.raises(ChainNotFound, match=str(id_)) as caught, chains.current_job(id_):
        raise AssertionError("the block must not be entered")
    assert caught.value.chain_id == id_


def test_complete_returns_the_chain():
    chain = pending()
    with chains.current_job(chain.id) as current:
        current.continue_with(typed, 1)
    returned = chains.complete(chain.id, 2)
    assert (returned.id, returned.status, returned.output) == (chain.id, "completed", 2)
    assert returned.current_job.type_name == typed.name


def use_finish(current):
    current.finish("again")


def use_continue_with(current):
    current.continue_with(approval)


@pytest.mark.parametrize("use", [use_finish, use_continue_with])
def test_a_completed_job_cannot_be_completed_again(use):
    chain = completed()
    before = rows()
    with pytest.raises(JobAlreadyCompleted, match=str(chain.id)) as caught, chains.current_job(chain.id) as current:
        use(current)
    assert caught.value.job_id == chain.id
    assert rows() == before


@pytest.mark.parametrize("use", [use_finish, use_continue_with])
@pytest.mark.parametrize("make", [failed, cancelled])
def test_a_failed_or_cancelled_job_must_be_retried_first(make, use):
    chain = make()
    before = rows()
    message = f"is {chain.status}: use chains.retry first"
    with pytest.raises(JobNotCompletable, match=message) as caught, chains.current_job(chain.id) as current:
        use(current)
    assert (caught.value.job_id, caught.value.status) == (chain.id, chain.status)
    assert rows() == before
    chains.retry(chain.id)
    finish(chain, "done")
    assert chain.refresh().output == "done"


class TestOutputs:
    @pytest.mark.parametrize("output", ["two", None, float("nan"), object()])
    def test_an_invalid_output_is_refused_and_changes_nothing(self, output):
        chain = typed.enqueue(1)
        before = rows()
        with pytest.raises(InvalidOutput):
            finish(chain, output)
        assert rows() == before

    def test_the_output_may_be_a_value_of_the_type(self, monkeypatch):
        pytest.importorskip("pydantic")
        decision = JobType("completing.decision", output=Decision)
        monkeypatch.setitem(get_registry().declared, decision.name, decision)
        chain = decision.enqueue()
        with pytest.raises(InvalidOutput):
            finish(chain, {"by": "me", "approved": "perhaps"})
        finish(chain, Decision("me", approved=True))
        assert chain.refresh().output == Decision("me", approved=True)
        assert chain.stored_output == {"by": "me", "approved": True}

    def test_without_a_type_any_json_is_valid(self):
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
    def test_an_exception_undoes_the_block_with_the_callers_rows(self):
        chain = running()
        before = rows()
        with pytest.raises(ZeroDivisionError), chains.current_job(chain.id) as current:
            Effect.objects.create(job_id=chain.id, label="undone")
            current.continue_with(typed, 1)
            current.finish(2)
            raise ZeroDivisionError
        assert rows() == before

    def test_the_block_joins_the_callers_transaction(self):
        chain, kept = pending(), pending()
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            finish(chain)
            raise ZeroDivisionError
        with transaction.atomic():
            finish(kept)
            with pytest.raises(ZeroDivisionError), chains.current_job(chain.id) as current:
                current.finish()
                raise ZeroDivisionError  # undoes only the inner block
        assert (chain.refresh().status, kept.refresh().status) == ("pending", "completed")

    def test_an_error_that_the_block_catches_undoes_nothing_else(self):
        chain = pending()
        with chains.current_job(chain.id) as current:
            Effect.objects.create(job_id=chain.id, label="kept")
            current.finish("first")
            with pytest.raises(JobAlreadyCompleted):
                current.finish("second")
        assert chain.refresh().output == "first"
        assert Effect.objects.count() == 1

    def test_after_a_savepoint_is_rolled_back_the_current_job_is_the_previous_one(self):
        chain = pending()
        with chains.current_job(chain.id) as current:
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                current.continue_with(typed, 1)
                raise ZeroDivisionError
            assert current.job.id == chain.id
            current.finish("done")
        assert (chain.refresh().output, chain.jobs.count()) == ("done", 1)


class TestAnotherDatabase:
    pytestmark = committed

    def test_using_selects_the_database(self, second_alias):
        chain = approval.enqueue(using=second_alias)
        with pytest.raises(ChainNotFound):
            finish(chain)
        with chains.current_job(chain.id, approval, using=second_alias) as current:
            current.continue_with(typed, 1)
            assert current.job.input == 1
            current.finish(2)
        assert chain.refresh().output == 2
        assert not Job.objects.exists()
