"""Plain handlers behave in the same way in threads and in child processes."""

import os
from typing import Any
from uuid import UUID

import pytest
from django.db.models import F

from django_jobchains import chains, context
from django_jobchains.models import Chain, FailedAttempt, Job
from tests.isolation.app import sync_jobs
from tests.isolation.ends import ended, expire_lease, failures, labels, output
from tests.shop.models import Effect
from tests.support.waiting import until, until_completed
from tests.support.worker_processes import WorkerProcess

pytestmark = pytest.mark.usefixtures("worker")


def test_handlers_run_where_the_isolation_says(isolation: str, worker: WorkerProcess) -> None:
    pids = {output(sync_jobs.pid.enqueue()) for _ in range(2)}
    assert (pids == {worker.pid}) == (isolation == "thread")
    assert os.getpid() not in pids


def test_a_returned_value_completes_the_job_with_it() -> None:
    assert output(sync_jobs.double.enqueue(21)) == 42


def test_a_handler_that_returns_nothing_completes_with_none() -> None:
    assert output(sync_jobs.nothing.enqueue()) is None


def test_the_running_job_describes_the_attempt() -> None:
    chain = sync_jobs.describe.enqueue(priority=3, queue="special", max_attempts=1)
    found = output(chain)
    job = chain.jobs.get()
    assert found == {
        "id": str(job.id),
        "chain_id": str(chain.id),
        "type_name": "isolation.describe",
        "attempt": 1,
        "queue": "special",
        "priority": 3,
        "worker": job.completed_by,
        "max_attempts": 1,
        "is_last_attempt": True,
        "are_aware": True,
    }


def test_writes_of_complete_are_committed_with_the_job() -> None:
    chain = sync_jobs.complete.enqueue()
    assert output(chain) == "committed"
    assert labels(chain) == ["written"]


def test_an_error_after_complete_rolls_its_writes_back() -> None:
    chain = ended(sync_jobs.fails_after_complete.enqueue())
    assert chain.status == "failed"
    assert labels(chain) == []


def test_a_staged_job_commits_twice() -> None:
    chain = sync_jobs.staged.enqueue()
    assert output(chain) == "done"
    assert labels(chain) == ["prepared", "completed"]


def test_an_atomic_handler_writes_all_or_nothing() -> None:
    chain = sync_jobs.atomic.enqueue()
    assert output(chain) == 2
    assert labels(chain) == ["attempt 2"]


@pytest.mark.parametrize("first", [sync_jobs.count_down, sync_jobs.count_down_inside])
def test_a_chain_continues_to_its_end(first: Any) -> None:
    chain = first.enqueue(2)
    assert output(chain) == "zero"
    assert chain.jobs.count() == 3


def test_a_continuation_that_is_not_returned_is_an_error() -> None:
    chain = ended(sync_jobs.forgets_to_return.enqueue())
    [(kind, error)] = failures(chain)
    assert kind == "error"
    assert "must be returned" in error


def test_the_outputs_of_blockers_can_be_read() -> None:
    blockers = [sync_jobs.double.enqueue(number) for number in (1, 2, 3)]
    assert output(sync_jobs.sum_of_blockers.enqueue(blockers=blockers)) == 12


def test_a_failed_attempt_keeps_its_error_and_traceback_and_is_retried() -> None:
    chain = sync_jobs.retried.enqueue()
    assert output(chain) == [3, "ValueError: Boom 2 \ufffd \ufffd", True]
    assert failures(chain) == [("error", f"ValueError: Boom {number} \ufffd \ufffd") for number in (1, 2)]
    first = FailedAttempt.objects.filter(job_id=chain.id).order_by("lease_number")[0]
    assert first.traceback.startswith("Traceback (most recent call last)")
    assert 'raise ValueError(f"Boom {job.attempt}' in first.traceback
    assert "worker/isolated" not in first.traceback


@pytest.mark.parametrize(("given", "attempts"), [("key", 1), ("no", 1), ("again", 3)])
def test_the_rules_of_a_type_decide_which_errors_are_retried(given: str, attempts: int) -> None:
    chain = ended(sync_jobs.error.enqueue(given))
    assert (chain.status, len(failures(chain))) == ("failed", attempts)


@pytest.mark.parametrize("given", ["exit", "memory", "interrupt"])
def test_an_error_that_would_end_a_process_is_an_ordinary_one(given: str) -> None:
    chain = sync_jobs.exits.enqueue(given)
    assert output(chain) == 2
    assert [kind for kind, _ in failures(chain)] == ["error"]
    assert chain.jobs.get().crashes == 0


def test_infinite_recursion_is_an_ordinary_error() -> None:
    chain = ended(sync_jobs.recursion.enqueue())
    [(kind, error)] = failures(chain)
    assert (kind, error.partition(":")[0]) == ("error", "RecursionError")


def test_a_backoff_function_gets_the_error() -> None:
    assert output(sync_jobs.patient.enqueue("soon")) == 2
    late = sync_jobs.patient.enqueue("late")
    until(lambda: late.refresh().status == "pending" and late.current_job.attempt == 1, 20)
    assert (late.current_job.run_at - late.created_at).total_seconds() > 3000


def test_a_rescheduled_attempt_is_not_a_failure() -> None:
    chain = sync_jobs.rescheduled.enqueue()
    assert output(chain) == 2
    assert failures(chain) == []
    assert chain.jobs.get().reschedules == 1


def test_a_handler_that_gives_up_is_not_retried() -> None:
    chain = ended(sync_jobs.gives_up.enqueue())
    assert chain.status == "failed"
    assert failures(chain) == [("error", "FailJob: no use")]


def test_a_transaction_that_is_left_open_fails_the_attempt_and_is_undone() -> None:
    chain = ended(sync_jobs.leaves_open.enqueue())
    assert chain.status == "failed"
    assert labels(chain) == []
    assert output(sync_jobs.complete.enqueue()) == "committed"


def test_a_chain_that_a_handler_enqueues_is_run() -> None:
    started = Chain.objects.get(id=UUID(output(sync_jobs.enqueues.enqueue())))
    assert output(started) == 42


def test_a_failure_is_followed_by_its_chain(isolation: str) -> None:
    ended(sync_jobs.followed.enqueue(f"a sad story in {isolation}"))
    told = Job.objects.of_type("isolation.mourns").with_status("completed")
    until(lambda: f"ValueError: a sad story in {isolation}" in [job.output for job in told.all()], 20)


def test_log_lines_and_progress_are_kept_however_the_attempt_ends() -> None:
    chain = sync_jobs.logs.enqueue()
    job = chain.jobs.get()
    until(lambda: job.log_lines.count() == 2 and chain.refresh().status == "pending", 60)
    chains.run_now(chain)
    until_completed(chain, 60)
    until(lambda: job.log_lines.count() == 4, 10)
    lines = [(line.attempt, line.position, line.level, line.text, line.fields) for line in job.log_lines.order_by("pk")]
    odd = {"odd": "<class 'object'>"}
    assert lines == [
        (attempt, *rest) for attempt in (1, 2) for rest in ((0, 20, "first", {"amount": 7}), (1, 30, "second", odd))
    ]
    until(lambda: Job.objects.get(pk=job.pk).progress.attempt == 2, 10)
    assert (job.progress.fraction, job.progress.text) == (0.5, "half")


def test_a_cancelled_handler_stops_when_it_checks_its_signal() -> None:
    chain = sync_jobs.heeds.enqueue()
    until(lambda: "started" in labels(chain), 20)
    chains.cancel(chain)
    assert ended(chain).status == "cancelled"
    assert labels(chain) == ["started", "aborted cancelled"]


def test_a_handler_that_stops_at_its_timeout_has_failed_once() -> None:
    chain = sync_jobs.heeds_in_time.enqueue()
    assert output(chain) == 2
    assert failures(chain) == [("timeout", "JobAborted: The attempt was asked to stop: timed out.")]


def test_an_attempt_that_has_lost_its_job_writes_nothing() -> None:
    chain = sync_jobs.too_late.enqueue()
    until(lambda: "started" in labels(chain), 20)
    Job.objects.filter(pk=chain.id).update(lease_number=F("lease_number") + 1)
    Effect.objects.create(job_id=chain.id, label="go on")
    until(lambda: "lost: taken_by_another_worker" in labels(chain), 20)
    assert "written" not in labels(chain)
    expire_lease(chain.id)
    until_completed(chain, 60)


def test_what_a_handler_activates_does_not_reach_the_next_attempt() -> None:
    for code in ("de", "fr", "pl"):
        assert output(sync_jobs.language.enqueue(code)) == ["en-us", code]


def test_an_invalid_output_fails_the_attempt() -> None:
    chain = sync_jobs.invalid_output.enqueue()
    assert output(chain) == 2
    [(_, error)] = failures(chain)
    assert error.startswith("InvalidOutput: ")


def test_an_input_that_does_not_fit_is_not_retried() -> None:
    chain = sync_jobs.strict.enqueue({"number": 1})
    assert output(chain) == 1
    wrong = sync_jobs.strict.enqueue({"number": 1}, delay=3600)
    Job.objects.filter(pk=wrong.id).update(input=["not an object"])
    chains.run_now(wrong)
    assert ended(wrong).status == "failed"
    [(_, error)] = failures(wrong)
    assert error.startswith("InvalidInput: ")


def test_middleware_and_context_surround_the_handler() -> None:
    with context.bound(tenant="acme"):
        chain = sync_jobs.wrapped.enqueue()
    found = output(chain)
    assert found["context"] == {"tenant": "acme", "added": "by middleware"}
    assert found["provided"] == "by middleware"
    assert found["bound"] == {}
    assert found["fields"] == {
        "job_id": str(chain.id),
        "job_type": "isolation.wrapped",
        "attempt": "1",
        "tenant": "acme",
    }
    assert labels(chain) == ["around complete"]
