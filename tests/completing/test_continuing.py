"""``continue_with`` without a worker: the next job of the chain, and several steps in one call."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_jobchains import chains
from django_jobchains.chains import (
    ChainNotFound,
    Deduplicate,
    InvalidBlockers,
    JobNotCompletable,
    JobTypeMismatch,
    JobTypeNotFound,
)
from django_jobchains.exceptions import ContinuationNotAllowed, InvalidInput, InvalidOutput
from django_jobchains.models import Chain
from django_jobchains.processors import JobType
from tests.completing.work import (
    HOUR,
    OPEN,
    approval,
    asked_to_stop,
    choosy,
    finish,
    gone,
    inner,
    pending,
    rows,
    strict,
    typed,
)
from tests.shop.models import Effect

pytestmark = pytest.mark.django_db


def continued(chain: Chain, job_type: Any = approval, input: Any = None, **options: Any) -> Any:
    """The next job of a chain."""
    with chains.complete(chain.id) as current:
        current.continue_with(job_type, input, **options)
        return current.job


@pytest.mark.parametrize("make", [make for make in OPEN if make is not asked_to_stop])
def test_the_next_job_is_created_and_due(make: Any) -> None:
    chain = make()
    first = chain.current_job
    job = continued(chain, typed, 1)
    assert (job.chain_id, job.chain_index, job.chain_type_name) == (chain.id, 1, approval.name)
    assert (job.type_name, job.input, job.status, job.attempt) == (typed.name, 1, "pending", 0)
    assert job.run_at == job.created_at
    first.refresh_from_db()
    assert (first.status, first.output, first.completed_by) == ("completed", None, None)
    assert (chain.refresh().status, chain.output, chain.finished_at) == ("pending", None, None)


def test_a_chain_that_was_asked_to_stop_does_not_go_on() -> None:
    """As when its handler completes: what is completed stays, and the next job is cancelled."""
    chain = asked_to_stop()
    waiting = approval.enqueue(blockers=[chain])
    with chains.complete(chain.id) as current:
        current.continue_with(typed, 1)
        with pytest.raises(JobNotCompletable, match="is cancelled: use chains"):
            current.finish(2)
    assert [job.status for job in chain.jobs] == ["completed", "cancelled"]
    assert (chain.refresh().status, waiting.refresh().status) == ("cancelled", "blocked")
    chains.retry(chain.current_job.id)
    finish(chain, 2, typed)
    assert (chain.refresh().output, waiting.refresh().status) == (2, "pending")


def test_several_steps_in_one_call() -> None:
    chain = approval.enqueue("one")
    with chains.complete(chain.id, approval) as current:
        assert current.job.input == "one"
        current.continue_with(typed, 2)
        assert (current.job.type_name, current.job.input, current.job.chain_index) == (typed.name, 2, 1)
        current.continue_with(approval.name, "three")
        assert current.job.input == "three"
        current.finish("done")
        assert current.job.output == "done"
    steps = [(job.chain_index, job.status, job.output, job.completed_by) for job in chain.refresh().jobs]
    assert steps == [(0, "completed", None, None), (1, "completed", None, None), (2, "completed", "done", None)]
    assert (chain.status, chain.output, chain.input) == ("completed", "done", "one")


def test_each_step_has_the_output_of_its_own_type() -> None:
    chain = pending()
    with chains.complete(chain.id) as current:
        current.continue_with(typed, 1)
        with pytest.raises(InvalidOutput):
            current.finish("two")
        current.finish(2)
    assert chain.refresh().output == 2


def test_the_next_call_starts_where_the_chain_is() -> None:
    chain = pending()
    continued(chain, typed, 1)
    with pytest.raises(JobTypeMismatch):
        finish(chain, "late", approval)
    finish(chain, 2, typed)
    assert chain.refresh().output == 2


def test_a_chain_of_a_hundred_steps_costs_the_same_for_each(django_assert_num_queries: Any) -> None:
    chain = pending()
    continued(chain)
    with chains.complete(chain.id) as current:
        for _ in range(3):
            with django_assert_num_queries(COST_OF_A_STEP):
                current.continue_with(approval)
        for _ in range(95):
            current.continue_with(approval)
        with django_assert_num_queries(COST_OF_A_STEP):
            current.continue_with(approval)
    assert chain.jobs.count() == 101


#: A savepoint and its end, the UPDATE of the job, the INSERT of the next, and a look at the last one.
COST_OF_A_STEP = 5


class TestRules:
    """Those of ``job.continue_with`` in a handler; after an error nothing has changed, and the block may go on."""

    @pytest.mark.parametrize(
        ("own", "job_type", "input", "error"),
        [
            (strict, approval, None, ContinuationNotAllowed),
            (approval, "completing.nowhere", None, JobTypeNotFound),
            (approval, typed, "one", InvalidInput),
            (approval, approval, object(), InvalidInput),
        ],
    )
    def test_what_is_not_allowed(self, own: Any, job_type: Any, input: Any, error: type[Exception]) -> None:
        chain = own.enqueue()
        before = rows()
        with chains.complete(chain.id) as current:
            with pytest.raises(error):
                current.continue_with(job_type, input)
            assert rows() == before
            current.finish("instead")
        assert chain.refresh().output == "instead"

    def test_the_rules_are_those_of_the_step_before(self) -> None:
        chain = strict.enqueue()
        with chains.complete(chain.id) as current:
            current.continue_with(typed, 1)
            current.continue_with(strict)
            with pytest.raises(ContinuationNotAllowed):
                current.continue_with(strict)

    def test_a_type_that_is_no_entry_may_come_next(self) -> None:
        assert continued(pending(), inner).type_name == inner.name

    def test_a_type_that_no_app_declares_may_continue_with_any(self) -> None:
        assert continued(gone.enqueue(), typed, 1).input == 1

    def test_a_job_type_object_needs_no_declaration(self) -> None:
        assert continued(pending(), gone).type_name == gone.name

    def test_the_input_may_be_an_object_of_the_type(self) -> None:
        assert continued(pending(), JobType("completing.floats", input=list[float]), [1.5]).input == [1.5]


class TestOptions:
    def test_priority_and_queue_are_the_jobs_before_unless_given(self) -> None:
        chain = approval.enqueue(priority=3, queue="mail")
        job = continued(chain)
        assert (job.priority, job.queue) == (3, "mail")
        job = continued(chain, priority=-1, queue="other")
        assert (job.priority, job.queue) == (-1, "other")

    @pytest.mark.parametrize("delay", [90, timedelta(seconds=90)])
    def test_a_delay_is_counted_by_the_database(self, delay: Any) -> None:
        job = continued(pending(), delay=delay)
        assert abs((job.run_at - job.created_at).total_seconds() - 90) < 0.002

    def test_run_at_is_kept(self) -> None:
        run_at = datetime(2091, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
        assert continued(pending(), run_at=run_at).run_at == run_at

    @pytest.mark.parametrize("options", [{"queue": ""}, {"priority": 99_999}, {"delay": float("nan")}])
    def test_other_values_are_an_error_and_change_nothing(self, options: Any) -> None:
        chain = pending()
        before = rows()
        with pytest.raises(ValueError, match=r"queue|priority|delay"):
            continued(chain, **options)
        assert rows() == before

    def test_the_deduplication_key_goes_on_with_the_chain(self) -> None:
        chain = approval.enqueue(deduplicate=Deduplicate("once"))
        continued(chain)
        again = approval.enqueue(deduplicate=Deduplicate("once"))
        assert (again.id, again.deduplicated) == (chain.id, True)
        finish(chain)
        assert not approval.enqueue(deduplicate=Deduplicate("once")).deduplicated


class TestBlockers:
    def test_the_next_job_waits_for_them_in_order(self) -> None:
        first, second = typed.enqueue(1), typed.enqueue(2)
        chain = pending()
        job = continued(chain, blockers=[second, first.id])
        assert job.status == "blocked"
        links = job.blocker_links.order_by("position").values_list("blocker_id", "is_open")
        assert list(links) == [(second.id, True), (first.id, True)]
        finish(second, 0)
        assert chain.refresh().status == "blocked"
        finish(first, 0)
        assert chain.refresh().status == "pending"

    def test_those_that_have_ended_are_not_waited_for(self) -> None:
        ended = typed.enqueue(1)
        finish(ended, 0)
        assert continued(pending(), blockers=[ended]).status == "pending"

    def test_a_chain_may_end_in_the_block_that_waits_for_it(self) -> None:
        blocker, chain = typed.enqueue(1), pending()
        with chains.complete(chain.id) as current:
            current.continue_with(approval, blockers=[blocker])
            finish(blocker, 0)
            assert current.job.status == "pending"

    def test_wrong_ones_are_an_error_and_change_nothing(self) -> None:
        chain, other = pending(), pending()
        waiting = approval.enqueue(blockers=[chain])
        before = rows()
        for job_type, blockers, error in (
            (approval, [chain], InvalidBlockers),
            (approval, [other, other], InvalidBlockers),
            (approval, [waiting], InvalidBlockers),  # which waits for this chain
            (choosy, [other], InvalidBlockers),
            (approval, [JobType("x").item().job.id], ChainNotFound),
        ):
            with chains.complete(chain.id) as current, pytest.raises(error):
                current.continue_with(job_type, blockers=blockers)
            assert rows() == before

    def test_who_waits_for_the_chain_is_freed_by_its_end_and_not_by_a_step(self) -> None:
        chain, open_ = pending(), pending()
        waiting = approval.enqueue(blockers=[chain])
        later = approval.enqueue(blockers=[chain], delay=HOUR)
        both = approval.enqueue(blockers=[chain, open_])
        due = later.current_job.run_at
        continued(chain)
        assert {given.refresh().status for given in (waiting, later, both)} == {"blocked"}
        finish(chain)
        assert [given.refresh().status for given in (waiting, later, both)] == ["pending", "pending", "blocked"]
        assert later.current_job.run_at == due

    def test_an_exception_in_the_block_frees_nobody(self) -> None:
        chain = pending()
        waiting = approval.enqueue(blockers=[chain])
        before = rows()
        with pytest.raises(ZeroDivisionError), chains.complete(chain.id) as current:
            current.finish()
            assert waiting.refresh().status == "pending"
            raise ZeroDivisionError
        assert rows() == before


class TestAsync:
    """``acomplete`` calls a sync function inside the transaction."""

    acomplete = staticmethod(async_to_sync(chains.acomplete))

    def test_it_does_the_same_and_returns_what_the_function_does(self) -> None:
        chain = pending()

        def step(current: chains.CurrentJob) -> str:
            Effect.objects.create(job_id=chain.id, label="done")
            current.continue_with(typed, 1)
            current.finish(2)
            return "returned"

        assert self.acomplete(chain.id, step, approval) == "returned"
        assert (chain.refresh().output, Effect.objects.count()) == (2, 1)

    def test_an_exception_undoes_it(self) -> None:
        chain = pending()
        before = rows()

        def fail(current: chains.CurrentJob) -> None:
            Effect.objects.create(job_id=chain.id, label="undone")
            current.finish()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            self.acomplete(chain.id, fail)
        assert rows() == before

    def test_its_errors_are_the_same(self) -> None:
        chain = pending()
        with pytest.raises(JobTypeMismatch):
            self.acomplete(chain.id, lambda current: current.finish(), typed)
        with pytest.raises(ChainNotFound):
            self.acomplete(JobType("x").item().job.id, lambda current: current.finish())
