"""An attempt fails as a whole if its handler ends the transaction, or if the connection breaks."""

from functools import partial
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_jobchains.exceptions import ConnectionLost, TransactionEnded, TransactionLeftOpen
from django_jobchains.models import Chain, FailedAttempt, Job
from django_jobchains.processors import Backoff, Batch, RunningJob
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.scenario import complete, effects, prepare, write

pytestmark = committed

#: Statements that end a transaction without Django's knowledge. Some of them begin another one.
ENDS = ["ROLLBACK", "ROLLBACK; BEGIN", "COMMIT", "COMMIT; BEGIN"]

ends = pytest.mark.parametrize("end", ENDS)
PHASES = {"complete": complete, "staged": prepare, "atomic": partial(prepare, mode="atomic")}
phases = pytest.mark.parametrize("phase", PHASES)


def effect(job: RunningJob[Any], label: str) -> None:
    Effect.objects.create(job_id=job.id, label=label)


def execute(statements: str) -> None:
    with connection.cursor() as cursor:
        for statement in statements.split("; "):
            cursor.execute(statement)


def labels() -> list[str]:
    return sorted(Effect.objects.values_list("label", flat=True))


def assert_failed(*chains: Chain, error: type[Exception] = TransactionEnded) -> None:
    for chain in chains:
        job = chain.refresh().current_job
        assert (job.status, job.attempt, job.output) == ("pending", 1, None)
        assert (job.last_error or "").startswith(f"{error.__name__}: ")
        assert job.failed_attempts.count() == 1


@ends
@phases
def test_transaction_ended_in_a_phase(scenario, work, phase, end):
    continued: list[bool] = []

    def ends(jobs):
        def function():
            write(jobs, "before")()
            execute(end)

        yield PHASES[phase](function)
        continued.append(True)

    chains = scenario.enqueue(ends)
    work(slots=1)
    assert_failed(*chains)
    assert effects() == (["before"] if "COMMIT" in end else [])
    assert continued == ([] if phase == "staged" else [True])


@ends
def test_transaction_ended_in_an_atomic_handler(processors, work, end):
    @processors.register("ends", mode="atomic")
    def ends(job: RunningJob[Any]) -> Any:
        effect(job, "before")
        execute(end)
        return job.continue_with("ends")

    chain = ends.enqueue()
    work(slots=1)
    assert_failed(chain)
    assert Job.objects.count() == 1


def test_writes_in_the_next_transaction_are_rolled_back(processors, work):
    @processors.register("ends")
    def ends(job: RunningJob[Any]) -> None:
        with job.complete():
            execute("ROLLBACK; BEGIN")
            with transaction.atomic():
                effect(job, "after")

    chain = ends.enqueue()
    work(slots=1)
    assert_failed(chain)
    assert labels() == []


@ends
@pytest.mark.postgresql
@pytest.mark.parametrize("option", ["prepare_threshold", "DISABLE_SERVER_SIDE_CURSORS"])
def test_transaction_ended_with_other_kinds_of_cursors(processors, work, monkeypatch, end, option):
    """These settings change how statements are sent."""
    connection.ensure_connection()  # the connection of this thread keeps its options after the test
    if option == "prepare_threshold":
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", {**connection.settings_dict["OPTIONS"], option: 0})
    else:
        monkeypatch.setitem(connection.settings_dict, option, True)

    @processors.register("ends")
    def ends(job: RunningJob[Any]) -> None:
        with job.complete():
            effect(job, "before")
            execute(end)

    chain = ends.enqueue()
    work(slots=1)
    assert_failed(chain)


@ends
@pytest.mark.parametrize("count", [1, 3])
def test_transaction_ended_in_a_batch(processors, work, end, count):
    @processors.register("ends", batch_limit=5)
    def ends(jobs: Batch[Any]) -> None:
        with jobs.complete():
            for job in jobs:
                effect(job, "before")
                job.finish()
            execute(end)

    enqueued = [ends.enqueue() for _ in range(count)]
    work(slots=1)
    assert_failed(*enqueued)


def test_transaction_ended_in_a_batch_that_completes_nothing(processors, work):
    """The jobs get the outcomes that the handler gave them, but none of its writes is kept."""

    @processors.register("ends", batch_limit=5)
    def ends(jobs: Batch[Any]) -> None:
        with jobs.complete():
            effect(jobs[0], "before")
            jobs[0].reschedule(delay=1_000)
            execute("ROLLBACK; BEGIN")
            effect(jobs[0], "after")

    chain = ends.enqueue()
    work(slots=1)
    assert (chain.refresh().status, chain.current_job.reschedules) == ("pending", 1)
    assert labels() == []


@pytest.mark.parametrize("end", ["ROLLBACK TO spot", "RELEASE spot"])
def test_handler_may_end_its_own_savepoints(processors, work, end):
    @processors.register("careful")
    def careful(job: RunningJob[Any]) -> str:
        with job.prepare():
            execute("SAVEPOINT spot")
            execute(end)
        with job.complete():
            effect(job, "before")
            execute("SAVEPOINT spot")
            execute(end)
            with transaction.atomic():
                effect(job, "after")
        return "done"

    chain = careful.enqueue()
    work(slots=1)
    assert chain.refresh().output == "done"
    assert labels() == ["after", "before"]


# Other databases


@phases
def test_transaction_left_open_on_another_database_in_a_phase_fails_the_attempt(scenario, work, second_alias, phase):
    def messy(jobs):
        def function():
            write(jobs, "half")()
            transaction.atomic(using=second_alias).__enter__()

        yield PHASES[phase](function)

    chains = scenario.enqueue(messy)
    work(slots=1)
    assert_failed(*chains, error=TransactionLeftOpen)
    # The connections of a plain handler are checked when it returns: its staged prepare is committed by then.
    is_committed = phase == "staged" and scenario.kind != "async"
    assert effects() == (["half"] if is_committed else [])


@pytest.mark.parametrize("place", ["before", "inside", "after"])
@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_transaction_left_open_on_another_database_rolls_back_complete(processors, work, second_alias, place, mode):
    def leave(job: RunningJob[Any], here: str) -> None:
        if place == here:
            transaction.atomic(using=second_alias).__enter__()
            Effect.objects.using(second_alias).create(job_id=job.id, label="left")

    @processors.register("messy", mode=mode)
    def messy(job: RunningJob[Any]) -> str:
        leave(job, "before")
        with job.complete():
            effect(job, "half")
            leave(job, "inside")
        leave(job, "after")
        return "done"

    chain = messy.enqueue()
    work(slots=1)
    assert_failed(chain, error=TransactionLeftOpen)
    assert labels() == []
    assert not Effect.objects.using(second_alias).exists()


@pytest.mark.parametrize("completes", [True, False])
def test_transaction_left_open_by_a_batch_rolls_back_its_outcomes(processors, work, second_alias, completes):
    @processors.register("messy", batch_limit=5)
    def messy(jobs: Batch[Any]) -> None:
        for job in jobs:
            job.finish()
        if completes:
            with jobs.complete():
                effect(jobs[0], "half")
        transaction.atomic(using=second_alias).__enter__()

    enqueued = [messy.enqueue() for _ in range(2)]
    work(slots=1)
    assert_failed(*enqueued, error=TransactionLeftOpen)
    assert labels() == []


def test_transaction_left_open_by_an_on_commit_hook_is_closed_and_the_job_remains_completed(
    processors, work, second_alias
):
    open_: list[bool] = []

    def leave() -> None:
        transaction.atomic(using=second_alias).__enter__()

    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> str:
        with job.complete():
            transaction.on_commit(leave)
        return "done"

    @processors.register("reads")
    def reads(job: RunningJob[Any]) -> None:
        open_.append(connections[second_alias].in_atomic_block)

    chain = messy.enqueue()
    reads.enqueue(priority=-1)
    work(slots=1)
    assert chain.refresh().output == "done"
    assert open_ == [False]


# Broken connections


@pytest.fixture
def break_connection():
    """Return a function that makes the server end this thread's session, and swallows the error of the next query."""
    psycopg = pytest.importorskip("psycopg")

    def cut() -> None:
        connection.ensure_connection()
        info = connection.connection.info
        with psycopg.connect(info.dsn, password=info.password, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [info.backend_pid])
        with pytest.raises(OperationalError):
            execute("SELECT 1")

    return cut


@pytest.mark.postgresql
@pytest.mark.parametrize("place", ["before the phase", "in the phase", "in a handler without phases"])
def test_broken_connection_whose_error_was_swallowed_fails_the_attempt(processors, work, break_connection, place):
    @processors.register("breaks", backoff=Backoff(0, 1, 0, 0), max_attempts=3)
    def breaks(job: RunningJob[Any]) -> None:
        if job.attempt == 1 and place != "in the phase":
            break_connection()
        if job.attempt == 1 and place == "in a handler without phases":
            return
        with job.complete():
            effect(job, "written")
            if job.attempt == 1 and place == "in the phase":
                break_connection()

    chain = breaks.enqueue()
    work(slots=1)
    assert (chain.refresh().status, chain.current_job.attempt) == ("completed", 2)
    assert FailedAttempt.objects.get().error.startswith(f"{ConnectionLost.__name__}: ")
    assert labels() == ["written"]
