"""Workers run jobs during migrations: no job is lost, and none runs twice."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.db import connection

from django_jobchains import chains, queues
from django_jobchains.db.ids import new_id
from django_jobchains.handlers.running_job import RunningJob
from django_jobchains.models import Chain, FailedAttempt, Job, JobProgress, LogLine
from django_jobchains.overview import overview
from django_jobchains.processors import Processors
from tests.online_migrations.test_lint import NAMES
from tests.shop.models import Effect
from tests.support.waiting import until
from tests.support.workers import StartWorker, events, make_worker, processors, registry, start_worker

__all__ = ("events", "make_worker", "processors", "registry", "start_worker")

JOB = Job._meta.db_table
#: Columns of the job table after migration 0001, which an older worker names in its statements.
COLUMNS = (
    "id, chain_id, chain_index, chain_type_name, type_name, queue, priority, status, run_at, attempt, lease_number, "
    "crashes, input, created_at"
)
#: How many chains are completed before, during and after the migration.
CHAIN_COUNT = 30


@pytest.fixture
def enqueue(processors: Processors) -> Callable[[], UUID]:
    """Enqueue a chain of two jobs, each of which writes a row in the transaction that completes it."""

    @processors.register("work.second", entry=False)
    def second(job: RunningJob[Any]) -> None:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="second")

    @processors.register("work.first", continues_with=["work.second"])
    def first(job: RunningJob[Any]) -> Any:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="first")
            return job.continue_with(second)

    return lambda: first.enqueue().id


@contextmanager
def continuous_load(enqueue: Callable[[], UUID]) -> Iterator[list[UUID]]:
    """Keep enqueueing a few chains ahead of the workers, and finally wait until all of them are completed."""
    started: list[UUID] = []
    errors: list[BaseException] = []
    is_stopped = threading.Event()

    def run() -> None:
        try:
            while not is_stopped.is_set():
                started.append(enqueue())
                until(lambda: len(started) - completed_count() < CHAIN_COUNT or is_stopped.is_set(), 60)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        until(lambda: completed_count() > CHAIN_COUNT or errors, 60, lambda: errors)
        yield started
        before = completed_count()
        until(lambda: completed_count() > before + CHAIN_COUNT or errors, 60, lambda: errors)
    finally:
        is_stopped.set()
        thread.join()
    assert not errors
    until(lambda: completed_count() == len(started), 60, lambda: Job.objects.incomplete().values())


def completed_count() -> int:
    return Job.objects.filter(status="completed", chain_index=1).count()


def assert_every_step_ran_once(started: list[UUID]) -> None:
    """Check that each job of each chain ran once, at its first attempt."""
    jobs = Job.objects.filter(chain_id__in=started)
    assert jobs.count() == Job.objects.count() == 2 * len(started)
    assert set(jobs.values_list("status", "attempt", "crashes")) == {("completed", 1, 0)}
    assert sorted(Effect.objects.values_list("job_id", flat=True)) == sorted(jobs.values_list("id", flat=True))
    assert not FailedAttempt.objects.exists()


class OlderWorker:
    """Runs the statements of an old version's worker. Today's worker needs tables that old migrations lack."""

    def __init__(self) -> None:
        self.completed: list[UUID] = []
        self.error: BaseException | None = None
        self._stops = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stops.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stops.is_set():
                with connection.cursor() as cursor:
                    self._enqueue(cursor)
                    self._complete(cursor, self._claim(cursor))
        except BaseException as error:
            self.error = error
        finally:
            connection.close()

    def _enqueue(self, cursor: Any) -> None:
        for _ in range(2):  # it completes one of them
            cursor.execute(
                f"INSERT INTO {JOB} ({COLUMNS}) VALUES (%(id)s, %(id)s, 0, 'work.second', 'work.second', 'default', 0, "
                "'pending', clock_timestamp(), 0, 0, 0, 'null', clock_timestamp())",
                {"id": new_id()},
            )

    def _claim(self, cursor: Any) -> UUID:
        cursor.execute(
            f"UPDATE {JOB} SET status = 'running', attempt = attempt + 1, lease_number = lease_number + 1 WHERE id = "
            f"(SELECT id FROM {JOB} WHERE status = 'pending' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id"
        )
        job_id: UUID = cursor.fetchone()[0]
        return job_id

    def _complete(self, cursor: Any, job_id: UUID) -> None:
        cursor.execute(
            f"UPDATE {JOB} SET status = 'completed', output = 'null', finished_at = clock_timestamp() "
            "WHERE id = %s AND lease_number = 1",
            [job_id],
        )
        self.completed.append(job_id)


@pytest.mark.postgresql
@pytest.mark.usefixtures("enqueue")
@pytest.mark.parametrize("state", NAMES[:-1])
def test_older_worker_continues_during_a_migration_from(state: str, migrate: Any, start_worker: StartWorker) -> None:
    migrate(state)
    older = OlderWorker()
    try:
        until(lambda: len(older.completed) > CHAIN_COUNT or older.error, 60)
        migrate()
        during = len(older.completed)
        until(lambda: len(older.completed) > during + CHAIN_COUNT or older.error, 60)
    finally:
        older.stop()
    assert older.error is None
    assert set(older.completed) == set(Job.objects.with_status("completed").values_list("id", flat=True))
    remaining = set(Job.objects.with_status("pending").values_list("id", flat=True))
    assert len(remaining) == len(older.completed)
    start_worker(slots=4, poll_seconds=1)
    until(lambda: Job.objects.filter(status="completed", attempt=1).count() == 2 * len(remaining), 60)
    assert set(Effect.objects.values_list("job_id", flat=True)) == remaining


@contextmanager
def extra_columns() -> Iterator[None]:
    """Add a nullable column to each table, as a migration of a later version might."""
    tables = [
        model._meta.db_table for model in apps.get_app_config("django_jobchains").get_models() if model is not Chain
    ]
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f'ALTER TABLE "{table}" ADD COLUMN "of_later" varchar(20) NULL')
        try:
            yield
        finally:
            for table in tables:
                cursor.execute(f'ALTER TABLE "{table}" DROP COLUMN "of_later"')


@pytest.mark.slow
def test_worker_continues_while_columns_are_added(
    start_worker: StartWorker, enqueue: Callable[[], UUID], processors: Processors, caplog: pytest.LogCaptureFixture
) -> None:
    """Every statement names its columns, so a new one changes nothing."""

    @processors.register("work.talks", max_attempts=2)
    def log_and_fail_once(job: RunningJob[Any]) -> None:
        job.log("text", of="job")
        job.set_progress(0.5, "half")
        if job.attempt == 1:
            raise ValueError

    worker = start_worker(slots=4, poll_seconds=1)
    with continuous_load(enqueue) as started, extra_columns():
        chain = log_and_fail_once.enqueue(blockers=[chains.get(started[0])])
        queues.set_limit("default", 3)
        assert chain.result(30) is None
        # The line of the first attempt is skipped if the second begins before it is written.
        until(lambda: LogLine.objects.filter(attempt=2).count() == 1 and JobProgress.objects.count() == 1, 30)
        chains.prune(timedelta(0), types=["work.talks"])
        overview()
        assert FailedAttempt.objects.count() == 0
        worker.stop()
        start_worker(slots=4, poll_seconds=1)
        before = len(started)
        until(lambda: len(started) > before + CHAIN_COUNT, 60)
    assert_every_step_ran_once(started)
    assert [record.message for record in caplog.records if "work.talks" not in record.message] == []
