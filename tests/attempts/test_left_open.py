"""A transaction that a handler leaves open is rolled back, its job is retried, and the slot's next job starts clean."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_jobchains.models import Chain
from django_jobchains.processors import RunningJob
from tests.shop.models import Effect
from tests.support.attempts import committed

pytestmark = committed

Leave = Callable[[], Any]


def leave_an_atomic_block() -> None:
    transaction.atomic().__enter__()


def leave_a_block_without_savepoint() -> None:
    transaction.atomic(savepoint=False).__enter__()


def leave_autocommit_off() -> None:
    transaction.set_autocommit(False)


def leave_a_raw_transaction() -> None:
    connection.cursor().execute("BEGIN")


everything = (leave_an_atomic_block, leave_autocommit_off, leave_a_raw_transaction)
blocks = (leave_an_atomic_block, leave_a_block_without_savepoint)


def write(job: RunningJob[Any]) -> None:
    Effect.objects.create(job_id=job.id, label="left")


def returns(job: RunningJob[Any], leave: Leave) -> None:
    leave()
    write(job)


def raises(job: RunningJob[Any], leave: Leave) -> None:
    returns(job, leave)
    raise ValueError("no luck")


def completes_afterwards(job: RunningJob[Any], leave: Leave) -> None:
    leave()
    with job.complete():
        write(job)


def prepares_afterwards(job: RunningJob[Any], leave: Leave) -> None:
    leave()
    with job.prepare():
        write(job)


def in_complete(job: RunningJob[Any], leave: Leave) -> None:
    with job.complete():
        returns(job, leave)


def raises_in_complete(job: RunningJob[Any], leave: Leave) -> None:
    with job.complete():
        raises(job, leave)


def in_staged_prepare(job: RunningJob[Any], leave: Leave) -> None:
    with job.prepare():
        returns(job, leave)


def in_atomic_prepare(job: RunningJob[Any], leave: Leave) -> None:
    with job.prepare(mode="atomic"):
        returns(job, leave)


BLOCK_ERROR = "PhaseError: An atomic block was opened inside"
#: Where a handler leaves something open, what it leaves, and the error of its attempt.
PLACES: list[tuple[Callable[[RunningJob[Any], Leave], None], tuple[Leave, ...], str]] = [
    (returns, everything, "open transaction on database 'default'"),
    (raises, everything, "ValueError: no luck"),
    (completes_afterwards, everything, ""),
    (prepares_afterwards, everything, ""),
    (in_complete, blocks, BLOCK_ERROR),
    (raises_in_complete, blocks, "ValueError: no luck"),
    (in_staged_prepare, blocks, BLOCK_ERROR),
    (in_atomic_prepare, blocks, BLOCK_ERROR),
]


@pytest.fixture
def check_retried(processors, work):
    """Return a function that checks that a job is retried without effects, and that the slot's next job completes."""

    @processors.register("follower")
    def follower(job: RunningJob[Any]) -> list[bool]:
        before = [connection.in_atomic_block, not connection.get_autocommit()]
        with job.complete():
            Effect.objects.create(job_id=job.id, label="follower")
        return before

    def run(first: Chain) -> None:
        second = follower.enqueue(priority=-1)
        work(slots=1)
        (job,) = first.refresh().jobs
        assert (job.status, job.attempt, job.output) == ("pending", 1, None)
        assert job.failed_attempts.count() == 1
        assert (second.refresh().status, second.output) == ("completed", [False, False])
        assert [effect.label for effect in Effect.objects.all()] == ["follower"]

    return run


@pytest.mark.parametrize(
    ("place", "leave", "error"), [(place, leave, error) for place, leaves, error in PLACES for leave in leaves]
)
def test_what_a_handler_leaves_open_is_rolled_back(processors, check_retried, place, leave, error):
    chain = processors.register("messy")(lambda job: place(job, leave)).enqueue()
    check_retried(chain)
    assert error in chain.current_job.last_error


@pytest.mark.parametrize("leave", blocks)
def test_block_left_open_in_atomic_mode_is_rolled_back(processors, check_retried, leave):
    check_retried(processors.register("messy", mode="atomic")(lambda job: returns(job, leave)).enqueue())


@pytest.mark.parametrize("leave", everything)
def test_staged_prepare_before_an_open_transaction_stays_committed(processors, work, leave):
    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> None:
        with job.prepare():
            Effect.objects.create(job_id=job.id, label="prepared")
        returns(job, leave)

    chain = messy.enqueue()
    work(slots=1)
    assert chain.refresh().status == "pending"
    assert [effect.label for effect in Effect.objects.all()] == ["prepared"]


def test_transaction_left_open_on_another_database(processors, check_retried, second_alias):
    clean: list[bool] = []

    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> str:
        transaction.atomic(using=second_alias).__enter__()
        Effect.objects.using(second_alias).create(job_id=job.id, label="left")
        return "done"

    @processors.register("next user")
    def next_user(job: RunningJob[Any]) -> None:
        clean.append(not connections[second_alias].in_atomic_block)
        Effect.objects.using(second_alias).create(job_id=job.id, label="next user")

    chain = messy.enqueue()
    next_user.enqueue(priority=-2)
    check_retried(chain)
    assert "open transaction on database 'second'" in chain.current_job.last_error
    assert clean == [True]
    assert [effect.label for effect in Effect.objects.using(second_alias)] == ["next user"]


def test_raw_transaction_is_ended_even_if_its_cursor_is_kept(processors, check_retried):
    """SQLite closes a connection, and releases its locks, only when its last statement is finalized."""
    kept: list[Any] = []

    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> str:
        kept.append(connection.cursor())
        kept[0].execute("BEGIN")
        Effect.objects.create(job_id=job.id, label="left")
        return "done"

    try:
        check_retried(messy.enqueue())
    finally:
        kept.clear()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_unfinished_query_does_not_affect_the_next_job(processors, work):
    """SQLite keeps the snapshot of an unfinished query, and refuses to write after others have written."""
    kept: list[Any] = []

    @processors.register("reads")
    def reads(job: RunningJob[Any]) -> None:
        rows = Effect.objects.iterator(chunk_size=1)
        next(rows)
        kept.append(rows)

    @processors.register("writes")
    def writes(job: RunningJob[Any]) -> str:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="written")
        return "done"

    chains = []
    for number in range(4):
        Effect.objects.create(job_id="0" * 32, label="to read")
        chains += [reads.enqueue(priority=-number), writes.enqueue(priority=-number)]
    work(slots=1)
    kept.clear()
    gc.collect()  # a closed SQLite connection raises an error here
    errors = [chain.refresh().current_job.last_error for chain in chains]
    assert errors == [None] * 8
    assert Effect.objects.filter(label="written").count() == 4


def test_handler_may_close_its_connection(processors, work):
    @processors.register("closes")
    def closes(job: RunningJob[Any]) -> str:
        Effect.objects.create(job_id=job.id, label="before")
        connections.close_all()
        with job.complete():
            Effect.objects.create(job_id=job.id, label="after")
        return "done"

    chains = [closes.enqueue(), closes.enqueue()]
    work(slots=1)
    assert [chain.refresh().output for chain in chains] == ["done", "done"]
