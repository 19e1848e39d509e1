"""What a handler leaves open is rolled back, its job is rescheduled, and the slot's next job starts clean."""

import gc
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_jobchains.models import Chain
from django_jobchains.processors import Processors, RunningJob
from tests.attempts.work import Work, committed
from tests.shop.models import Effect

pytestmark = committed

Mess = Callable[[], Any]


def leave_an_atomic_block() -> None:
    transaction.atomic().__enter__()


def leave_two_atomic_blocks() -> None:
    transaction.atomic().__enter__()
    transaction.atomic().__enter__()


def leave_a_block_without_savepoint() -> None:
    transaction.atomic(savepoint=False).__enter__()


def leave_autocommit_off() -> None:
    transaction.set_autocommit(False)


def leave_a_raw_transaction() -> None:
    connection.cursor().execute("BEGIN")


everything = pytest.mark.parametrize(
    "leave", [leave_an_atomic_block, leave_two_atomic_blocks, leave_autocommit_off, leave_a_raw_transaction]
)
blocks = pytest.mark.parametrize("leave", [leave_an_atomic_block, leave_a_block_without_savepoint])


@pytest.fixture
def follow(processors: Processors, work: Work) -> Callable[[Chain], None]:
    """Runs a job on the only slot, then another, and asserts: the first pending without effects, the second fine."""

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


@everything
def test_after_a_handler_that_returns(processors: Processors, follow: Callable[[Chain], None], leave: Mess) -> None:
    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> str:
        leave()
        Effect.objects.create(job_id=job.id, label="left")
        return "done"

    chain = messy.enqueue()
    follow(chain)
    assert "transaction open on database 'default'" in chain.current_job.last_error


@everything
def test_after_a_handler_that_raises(processors: Processors, follow: Callable[[Chain], None], leave: Mess) -> None:
    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> str:
        leave()
        Effect.objects.create(job_id=job.id, label="left")
        raise ValueError("no luck")

    chain = messy.enqueue()
    follow(chain)
    assert chain.current_job.last_error == "ValueError: no luck"


@blocks
def test_inside_complete(processors: Processors, follow: Callable[[Chain], None], leave: Mess) -> None:
    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> str:
        with job.complete():
            leave()
            Effect.objects.create(job_id=job.id, label="left")
        return "done"

    chain = messy.enqueue()
    follow(chain)
    assert chain.current_job.last_error.startswith("PhaseError: An atomic block was opened inside")


@blocks
def test_inside_complete_with_an_error(processors: Processors, follow: Callable[[Chain], None], leave: Mess) -> None:
    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> str:
        with job.complete():
            leave()
            Effect.objects.create(job_id=job.id, label="left")
            raise ValueError("no luck")

    chain = messy.enqueue()
    follow(chain)
    assert chain.current_job.last_error == "ValueError: no luck"


@blocks
@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_inside_prepare(processors: Processors, follow: Callable[[Chain], None], leave: Mess, mode: Any) -> None:
    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> str:
        with job.prepare(mode=mode):
            leave()
            Effect.objects.create(job_id=job.id, label="left")
        return "done"

    chain = messy.enqueue()
    follow(chain)
    assert chain.current_job.last_error.startswith("PhaseError: An atomic block was opened inside")


@blocks
def test_in_atomic_mode(processors: Processors, follow: Callable[[Chain], None], leave: Mess) -> None:
    @processors.register("messy", mode="atomic")
    def messy(job: RunningJob[Any]) -> str:
        leave()
        Effect.objects.create(job_id=job.id, label="left")
        return "done"

    chain = messy.enqueue()
    follow(chain)


@everything
def test_before_complete(processors: Processors, follow: Callable[[Chain], None], leave: Mess) -> None:
    """The completion cannot be a transaction of its own then, so there is none."""

    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> str:
        leave()
        with job.complete():
            Effect.objects.create(job_id=job.id, label="left")
        return "done"

    follow(messy.enqueue())


@everything
def test_before_prepare(processors: Processors, follow: Callable[[Chain], None], leave: Mess) -> None:
    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> str:
        leave()
        with job.prepare():
            Effect.objects.create(job_id=job.id, label="left")
        return "done"

    follow(messy.enqueue())


@everything
def test_after_staged_prepare(processors: Processors, work: Work, leave: Mess) -> None:
    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> str:
        with job.prepare():
            Effect.objects.create(job_id=job.id, label="prepared")
        leave()
        Effect.objects.create(job_id=job.id, label="left")
        return "done"

    chain = messy.enqueue()
    work(slots=1)
    assert chain.refresh().status == "pending"
    assert [effect.label for effect in Effect.objects.all()] == ["prepared"]


def test_a_transaction_left_open_on_another_database(
    processors: Processors, follow: Callable[[Chain], None], second_alias: str
) -> None:
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
    follow(chain)
    assert "transaction open on database 'second'" in chain.current_job.last_error
    assert clean == [True]
    assert [effect.label for effect in Effect.objects.using(second_alias)] == ["next user"]


def test_a_raw_transaction_ends_also_when_its_cursor_is_kept(
    processors: Processors, follow: Callable[[Chain], None]
) -> None:
    """SQLite closes a connection only when the last of its statements is gone, and keeps its locks until then."""
    kept: list[Any] = []

    @processors.register("messy")
    def messy(job: RunningJob[Any]) -> str:
        kept.append(connection.cursor())
        kept[0].execute("BEGIN")
        Effect.objects.create(job_id=job.id, label="left")
        return "done"

    try:
        follow(messy.enqueue())
    finally:
        kept.clear()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_result_that_is_still_being_read_does_not_disturb_the_next_job(processors: Processors, work: Work) -> None:
    """SQLite keeps the snapshot of a statement that is not at its end, and refuses to write after it."""
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
    gc.collect()  # their connections are closed, of which SQLite's complain
    errors = [chain.refresh().current_job.last_error for chain in chains]
    assert errors == [None] * 8
    assert Effect.objects.filter(label="written").count() == 4


def test_a_handler_may_close_its_connection(processors: Processors, work: Work) -> None:
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
