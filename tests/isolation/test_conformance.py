"""What crosses the border between a worker and its child processes: the job, its signals, and how its attempt ends."""

import json
import os
from dataclasses import asdict

import pytest
from django.core.management import call_command
from django.db.models import F

from django_jobchains import chains, context
from django_jobchains.db.ids import new_id
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.store.rows import Effects, FailedWaiter, effects_of, effects_values, outcome_json
from tests.isolation.app import jobs
from tests.isolation.conftest import SETTINGS
from tests.isolation.ends import ended, expire_lease, failures, labels, output
from tests.shop.models import Effect
from tests.support.waiting import until, until_completed
from tests.support.worker_processes import started_processes

pytestmark = pytest.mark.usefixtures("worker")


@pytest.fixture(scope="module")
def transactional_db(django_db_setup, django_db_blocker):
    """Flush the database only after the last test of the module, because one worker uses it during all of them."""
    with django_db_blocker.unblock():
        yield
        call_command("flush", interactive=False, verbosity=0, reset_sequences=False, inhibit_post_migrate=True)


@pytest.fixture(scope="module", params=["process", "transient"])
def worker(request, transactional_db, tmp_path_factory):
    """A worker process that runs all types in this isolation, for all tests of the module."""
    with started_processes(tmp_path_factory.mktemp("workers"), SETTINGS) as start:
        jobchains = {"ISOLATION": request.param, "POLL_SECONDS": 0.2, "HEARTBEAT_SECONDS": 1}
        yield start("--slots", "4", jobchains=jobchains).until_ready()


def test_all_effects_of_a_child_reach_its_worker():
    first, second, third = new_id(), new_id(), new_id()
    effects = Effects(
        {"shop.ship"},
        {"shop.ship": 2},
        {first},
        {second},
        {third: FailedWaiter(third, first, "shop.mail", "the blocker failed")},
        {first: "shop.ship"},
        {second: ("shop.alert", "default")},
        {"shop.mail"},
        {"slow"},
    )
    values = asdict(effects)
    assert all(values.values())
    assert asdict(effects_of(json.loads(outcome_json(effects_values(effects))))) == values


FAILED = object()
FIRST = "ValueError: the first attempt"
LEFT_OPEN = "TransactionLeftOpen: "

#: How chains end: their first job, its input, the output or FAILED, what was written, and how the errors begin.
ENDS = [
    (jobs.evaluates, "21 * 2", 42, [], []),
    (jobs.evaluates, "None", None, [], []),
    (jobs.evaluates, "fail(job, KeyError('no'))", FAILED, [], ["KeyError"]),
    (jobs.evaluates, "fail(job, ValueError('never again'))", FAILED, [], ["ValueError: never again"]),
    (jobs.evaluates, "fail(job, ValueError('again'), 3)", FAILED, [], ["ValueError: again"] * 3),
    (jobs.evaluates, "fail(job, SystemExit('exit'))", 2, [], ["SystemExit: exit"]),
    (jobs.evaluates, "fail(job, RescheduleJob(delay=0.02))", 2, [], []),
    (jobs.evaluates, "fail(job, FailJob('no use'))", FAILED, [], ["FailJob: no use"]),
    (jobs.evaluates, "math.nan if job.attempt == 1 else 2", 2, [], ["InvalidOutput: "]),
    (jobs.evaluates, "job.attempt > 1 or (transaction.atomic().__enter__(), note(job, 'a'))", True, [], [LEFT_OPEN]),
    (jobs.evaluates, "job.attempt > 1 or send({'page': 1})", True, [], ["RuntimeError: A handler cannot call send()"]),
    (jobs.staged, "", "done", ["prepared", "completed"], []),
    (jobs.staged, "after complete", FAILED, ["prepared"], ["ValueError: after complete"]),
    (jobs.count_down, 2, "zero", [], []),
    (jobs.async_complete, None, [2, 2], ["prepared 1", "prepared 2", "completed 2"], [FIRST]),
]


@pytest.mark.parametrize(("job_type", "given", "result", "written", "errors"), ENDS)
def test_a_chain_ends(job_type, given, result, written, errors):
    chain = ended(job_type.enqueue(given))
    found = FAILED if chain.status == "failed" else chain.output
    assert (found, labels(chain)) == (result, written)
    found = failures(chain)
    assert [kind for kind, _ in found] == ["error"] * len(errors)
    assert all(error.startswith(start) for (_, error), start in zip(found, errors, strict=True)), found
    assert not any(job.crashes for job in chain.jobs.all())
    assert sum(job.reschedules or 0 for job in chain.jobs.all()) == ("Reschedule" in str(given))


def test_the_running_job_describes_the_attempt(worker):
    names = ("id", "chain_id", "type_name", "attempt", "queue", "priority", "worker", "max_attempts", "is_last_attempt")
    times = "all(time.tzinfo for time in (job.created_at, job.run_at, job.last_attempt_at))"
    expression = f"[os.getpid(), {times}, *(str(getattr(job, name)) for name in {names})]"
    chain = jobs.evaluates.enqueue(expression, priority=3, queue="special", max_attempts=1)
    pid, *found = output(chain)
    job = chain.jobs.get()
    values = (job.id, chain.id, "isolation.evaluates", 1, "special", 3, job.completed_by, 1, True)
    assert found == [True, *map(str, values)]
    assert pid not in (worker.pid, os.getpid())


def test_a_failed_attempt_keeps_its_error_and_traceback_and_is_retried():
    expression = r"fail(job, ValueError(f'Boom {job.attempt} \0 \ud800'), 2) and [job.last_error, job.is_last_attempt]"
    chain = jobs.evaluates.enqueue(expression)
    assert output(chain) == ["ValueError: Boom 2 \ufffd \ufffd", True]
    assert failures(chain) == [("error", f"ValueError: Boom {number} \ufffd \ufffd") for number in (1, 2)]
    first = FailedAttempt.objects.filter(job_id=chain.id).order_by("lease_number")[0]
    assert first.traceback.startswith("Traceback (most recent call last)")
    assert "raise error" in first.traceback
    assert "worker/isolated" not in first.traceback


def test_a_backoff_function_gets_the_error():
    late = jobs.evaluates.enqueue("fail(job, ValueError('late'))")
    until(lambda: late.refresh().status == "pending" and late.current_job.attempt == 1, 20)
    assert (late.current_job.run_at - late.created_at).total_seconds() > 3000


def test_log_lines_and_progress_are_kept_however_the_attempt_ends():
    chain = jobs.logs.enqueue()
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


@pytest.mark.parametrize("job_type", [jobs.heeds, jobs.async_heeds])
def test_a_cancelled_handler_can_clean_up(job_type):
    chain = job_type.enqueue()
    until(lambda: "started" in labels(chain), 20)
    chains.cancel(chain)
    assert ended(chain).status == "cancelled"
    assert labels(chain) == ["started", "aborted cancelled"]


def test_a_handler_that_stops_at_its_timeout_has_failed_once():
    chain = jobs.heeds_in_time.enqueue()
    assert output(chain) == 2
    assert failures(chain) == [("timeout", "JobAborted: The attempt was asked to stop: timed out.")]


def test_an_attempt_that_has_lost_its_job_writes_nothing():
    chain = jobs.too_late.enqueue()
    until(lambda: "started" in labels(chain), 20)
    Job.objects.filter(pk=chain.id).update(lease_number=F("lease_number") + 1)
    Effect.objects.create(job_id=chain.id, label="go on")
    until(lambda: "lost: taken_by_another_worker" in labels(chain), 20)
    assert "written" not in labels(chain)
    expire_lease(chain.id)
    until_completed(chain, 60)


def test_what_a_handler_leaves_does_not_reach_the_next_attempt():
    for code in ("de", "fr", "pl"):
        assert output(jobs.evaluates.enqueue(f"activate('{code}')")) == ["en-us", code]
    for number in (1, 2):  # Neither does a task on its event loop delay the end of the attempt.
        assert output(jobs.async_leaves_task.enqueue(number)) == number


@pytest.mark.postgresql
def test_a_connection_whose_session_has_ended_is_replaced_before_the_next_attempt():
    expression = "note(job, 'written') or end_session(connection.connection)"
    items = [jobs.evaluates.item(expression, max_attempts=1) for _ in range(8)]  # there are four children at most
    assert {ended(chain).status for chain in chains.enqueue_many(items)} == {"completed"}


@pytest.mark.parametrize("job_type", [jobs.wrapped, jobs.async_wrapped])
def test_middleware_context_and_log_surround_the_handler(job_type):
    with context.bound(tenant="acme"):
        chain = job_type.enqueue()
    assert output(chain) == {
        "context": {"tenant": "acme", "added": "by middleware"},
        "provided": "by middleware",
        "bound": {},
        "fields": {"job_id": str(chain.id), "job_type": job_type.name, "attempt": "1", "tenant": "acme"},
    }
    is_async = job_type is jobs.async_wrapped
    assert labels(chain) == ["awaited around handler"] * is_async + ["around complete"]
    until(lambda: [line.text for line in chain.jobs.get().log_lines.all()] == ["from a coroutine"] * is_async, 10)


def test_each_job_of_a_batch_ends_in_its_own_way():
    first, refused, retried, last = chains.enqueue_many([jobs.batch.item(number) for number in range(4)])
    assert (output(first), output(retried), output(last)) == (0, 20, 30)
    assert ended(refused).status == "failed"
    assert failures(refused) == [("error", "FailJob: no use")]
    assert len(failures(retried)) == 1
    until(lambda: "in a batch of 4" in [line.text for line in last.jobs.get().log_lines.all()], 10)


def test_cancelling_one_job_of_a_batch_aborts_its_signal_only():
    started = chains.enqueue_many([jobs.batch_heeds.item() for _ in range(3)])
    until(lambda: all("started" in labels(chain) for chain in started), 20)
    chains.cancel(started[1])
    assert [ended(chain).status for chain in started] == ["completed", "cancelled", "completed"]
