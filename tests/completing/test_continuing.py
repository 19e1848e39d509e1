"""``continue_with`` without a worker: it creates the next job of the chain, also several times in one block."""

from datetime import UTC, datetime, timedelta

import pytest

from django_jobchains import chains
from django_jobchains.chains import (
    Deduplicate,
    JobNotCompletable,
    JobTypeMismatch,
    JobTypeNotFound,
)
from django_jobchains.exceptions import ContinuationNotAllowed, InvalidInput, InvalidOutput
from django_jobchains.processors import JobType
from tests.completing.work import (
    HOUR,
    OPEN,
    approval,
    asked_to_stop,
    finish,
    gone,
    inner,
    pending,
    rows,
    strict,
    typed,
)

pytestmark = pytest.mark.django_db


def continued(chain, job_type=approval, input=None, **options):
    """Continue a chain, and return its new job."""
    with chains.current_job(chain.id) as current:
        current.continue_with(job_type, input, **options)
        return current.job


@pytest.mark.parametrize("make", [make for make in OPEN if make is not asked_to_stop])
def test_the_next_job_is_created_and_due(make):
    chain = make()
    first = chain.current_job
    job = continued(chain, typed, 1)
    assert (job.chain_id, job.chain_index, job.chain_type_name) == (chain.id, 1, approval.name)
    assert (job.type_name, job.input, job.status, job.attempt) == (typed.name, 1, "pending", 0)
    assert job.run_at == job.created_at
    first.refresh_from_db()
    assert (first.status, first.output, first.completed_by) == ("completed", None, None)
    assert (chain.refresh().status, chain.output, chain.finished_at) == ("pending", None, None)


def test_a_chain_that_was_asked_to_stop_does_not_continue():
    """The completed job stays completed, and the next one is cancelled, as after a handler."""
    chain = asked_to_stop()
    waiting = approval.enqueue(blockers=[chain])
    with chains.current_job(chain.id) as current:
        current.continue_with(typed, 1)
        with pytest.raises(JobNotCompletable, match="is cancelled: use chains"):
            current.finish(2)
    assert [job.status for job in chain.jobs] == ["completed", "cancelled"]
    assert (chain.refresh().status, waiting.refresh().status) == ("cancelled", "blocked")
    chains.retry(chain.current_job.id)
    finish(chain, 2, typed)
    assert (chain.refresh().output, waiting.refresh().status) == (2, "pending")


def test_several_steps_in_one_call():
    chain = approval.enqueue("one")
    with chains.current_job(chain.id, approval) as current:
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


def test_each_step_has_the_output_of_its_own_type():
    chain = pending()
    with chains.current_job(chain.id) as current:
        current.continue_with(typed, 1)
        with pytest.raises(InvalidOutput):
            current.finish("two")
        current.finish(2)
    assert chain.refresh().output == 2


def test_the_next_block_starts_at_the_current_job():
    chain = pending()
    continued(chain, typed, 1)
    with pytest.raises(JobTypeMismatch):
        finish(chain, "late", approval)
    finish(chain, 2, typed)
    assert chain.refresh().output == 2


def test_each_step_of_a_long_chain_takes_as_many_statements(django_assert_num_queries):
    chain = pending()
    continued(chain)
    with chains.current_job(chain.id) as current:
        for _ in range(3):
            with django_assert_num_queries(STATEMENTS_OF_A_STEP):
                current.continue_with(approval)
        for _ in range(95):
            current.continue_with(approval)
        with django_assert_num_queries(STATEMENTS_OF_A_STEP):
            current.continue_with(approval)
    assert chain.jobs.count() == 101


#: Two for the savepoint, the UPDATE of the job, the INSERT of the next one, and a SELECT of the last one.
STATEMENTS_OF_A_STEP = 5


class TestRules:
    """The rules of ``job.continue_with`` in a handler. An error changes nothing, and the block may continue."""

    @pytest.mark.parametrize(
        ("own", "job_type", "input", "error"),
        [
            (strict, approval, None, ContinuationNotAllowed),
            (approval, "completing.nowhere", None, JobTypeNotFound),
            (approval, typed, "one", InvalidInput),
            (approval, approval, object(), InvalidInput),
        ],
    )
    def test_invalid_continuations(self, own, job_type, input, error):
        chain = own.enqueue()
        before = rows()
        with chains.current_job(chain.id) as current:
            with pytest.raises(error):
                current.continue_with(job_type, input)
            assert rows() == before
            current.finish("instead")
        assert chain.refresh().output == "instead"

    def test_the_rules_are_those_of_the_current_job(self):
        chain = strict.enqueue()
        with chains.current_job(chain.id) as current:
            current.continue_with(typed, 1)
            current.continue_with(strict)
            with pytest.raises(ContinuationNotAllowed):
                current.continue_with(strict)

    @pytest.mark.parametrize(
        ("own", "job_type", "input"),
        [
            (approval, inner, None),
            (gone, typed, 1),
            (approval, gone, None),
            (approval, JobType("completing.floats", input=list[float]), [1.5]),
        ],
    )
    def test_types_without_entry_and_undeclared_types_may_take_part(self, own, job_type, input):
        job = continued(own.enqueue(), job_type, input)
        assert (job.type_name, job.input) == (job_type.name, input)


class TestOptions:
    def test_priority_and_queue_are_those_of_the_previous_job_by_default(self):
        chain = approval.enqueue(priority=3, queue="mail")
        job = continued(chain)
        assert (job.priority, job.queue) == (3, "mail")
        job = continued(chain, priority=-1, queue="other")
        assert (job.priority, job.queue) == (-1, "other")

    def test_the_next_job_may_have_a_delay_or_a_date(self):
        job = continued(pending(), delay=timedelta(seconds=90))
        assert (job.run_at - job.created_at).total_seconds() == pytest.approx(90, abs=5)
        run_at = datetime(2091, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC)
        assert continued(pending(), run_at=run_at).run_at == run_at

    @pytest.mark.parametrize("options", [{"queue": ""}, {"priority": 99_999}, {"delay": float("nan")}])
    def test_invalid_options_are_refused_and_change_nothing(self, options):
        chain = pending()
        before = rows()
        with pytest.raises(ValueError, match=r"queue|priority|delay"):
            continued(chain, **options)
        assert rows() == before

    def test_the_chain_keeps_its_deduplication_key(self):
        chain = approval.enqueue(deduplicate=Deduplicate("once"))
        continued(chain)
        again = approval.enqueue(deduplicate=Deduplicate("once"))
        assert (again.id, again.deduplicated) == (chain.id, True)
        finish(chain)
        assert not approval.enqueue(deduplicate=Deduplicate("once")).deduplicated


class TestBlockers:
    def test_the_next_job_waits_for_all_blockers(self):
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

    def test_a_blocker_may_end_in_the_same_block(self):
        blocker, chain = typed.enqueue(1), pending()
        with chains.current_job(chain.id) as current:
            current.continue_with(approval, blockers=[blocker])
            finish(blocker, 0)
            assert current.job.status == "pending"

    def test_waiting_jobs_start_at_the_end_of_the_chain_and_not_after_a_step(self):
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

    def test_an_exception_in_the_block_leaves_waiting_jobs_blocked(self):
        chain = pending()
        waiting = approval.enqueue(blockers=[chain])
        before = rows()
        with pytest.raises(ZeroDivisionError), chains.current_job(chain.id) as current:
            current.finish()
            assert waiting.refresh().status == "pending"
            raise ZeroDivisionError
        assert rows() == before
