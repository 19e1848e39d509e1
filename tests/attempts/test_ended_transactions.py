"""A transaction that the handler ended itself, or a connection that broke, fails the attempt; nothing is half done."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_jobchains.exceptions import ConnectionLost, TransactionEnded, TransactionLeftOpen
from django_jobchains.models import Chain, FailedAttempt, Job
from django_jobchains.processors import Backoff, Batch, Processors, RescheduleJob, RunningJob
from tests.attempts.work import Work, committed
from tests.shop.models import Effect

pytestmark = committed

#: What ends a transaction behind Django's back. After the last of each another one is open.
ENDS = ["ROLLBACK", "ROLLBACK; BEGIN", "COMMIT", "COMMIT; BEGIN"]

ends = pytest.mark.parametrize("end", ENDS)


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
@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_in_complete(processors: Processors, work: Work, end: str, mode: Any) -> None:
    @processors.register("ends", mode=mode)
    def ends(job: RunningJob[Any]) -> str:
        with job.complete():
            effect(job, "before")
            execute(end)
        return "done"

    chain = ends.enqueue()
    work(slots=1)
    assert_failed(chain)
    assert labels() == (["before"] if "COMMIT" in end else [])


@ends
def test_in_an_atomic_handler(processors: Processors, work: Work, end: str) -> None:
    @processors.register("ends", mode="atomic")
    def ends(job: RunningJob[Any]) -> Any:
        effect(job, "before")
        execute(end)
        return job.continue_with("ends")

    chain = ends.enqueue()
    work(slots=1)
    assert_failed(chain)
    assert Job.objects.count() == 1, "the chain went on"


@ends
def test_in_a_staged_prepare(processors: Processors, work: Work, end: str) -> None:
    went_on: list[bool] = []

    @processors.register("ends")
    def ends(job: RunningJob[Any]) -> None:
        with job.prepare():
            effect(job, "before")
            execute(end)
        went_on.append(True)

    chain = ends.enqueue()
    work(slots=1)
    assert_failed(chain)
    assert went_on == []


def test_what_is_written_in_the_next_transaction_is_rolled_back(processors: Processors, work: Work) -> None:
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
def test_by_psycopgs_cursor_and_by_djangos(
    processors: Processors, work: Work, monkeypatch: pytest.MonkeyPatch, end: str, option: str
) -> None:
    """Where statements go by neither libpq's own calls nor one way alone."""
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
def test_in_a_batch(processors: Processors, work: Work, end: str, count: int) -> None:
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


def test_in_a_batch_that_completes_nothing(processors: Processors, work: Work) -> None:
    """Its jobs end as it said, but without half of its writes."""

    @processors.register("ends", batch_limit=5)
    def ends(jobs: Batch[Any]) -> None:
        with jobs.complete():
            effect(jobs[0], "before")
            jobs[0].reschedule(delay=1_000)
            execute("ROLLBACK; BEGIN")
            effect(jobs[0], "after")

    chain = ends.enqueue()
    work(slots=1)
    assert_failed(chain, error=RescheduleJob)
    assert labels() == []


@pytest.mark.parametrize("end", ["ROLLBACK TO spot", "RELEASE spot"])
def test_savepoints_are_the_handlers_own(processors: Processors, work: Work, end: str) -> None:
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


@pytest.mark.parametrize("place", ["before", "inside", "after"])
@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_a_transaction_left_open_on_another_database_undoes_complete(
    processors: Processors, work: Work, second_alias: str, place: str, mode: Any
) -> None:
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
def test_a_transaction_left_open_by_a_batch_undoes_what_was_said(
    processors: Processors, work: Work, second_alias: str, completes: bool
) -> None:
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


def test_what_on_commit_hooks_leave_open_is_closed_and_the_job_stays_completed(
    processors: Processors, work: Work, second_alias: str
) -> None:
    open_: list[bool] = []

    def leave() -> None:
        transaction.atomic(using=second_alias).__enter__()

    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> str:
        with job.complete():
            transaction.on_commit(leave)
        return "done"

    @processors.register("looks")
    def looks(job: RunningJob[Any]) -> None:
        open_.append(connections[second_alias].in_atomic_block)

    chain = messy.enqueue()
    looks.enqueue(priority=-1)
    work(slots=1)
    assert chain.refresh().output == "done"
    assert open_ == [False]


# Connections that break


@pytest.fixture
def break_connection() -> Callable[[], None]:
    """The server ends this thread's session, and a query notices it; its error is swallowed."""
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
def test_a_broken_connection_whose_error_was_swallowed(
    processors: Processors, work: Work, break_connection: Callable[[], None], place: str
) -> None:
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
