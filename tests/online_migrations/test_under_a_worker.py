"""Workers run jobs during migrations: no job is lost, and none runs twice."""

import threading
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db import connection

from django_jobchains import chains, queues
from django_jobchains.handlers.running_job import RunningJob
from django_jobchains.models import Chain, FailedAttempt, Job, JobProgress, LogLine
from django_jobchains.monitoring import overview
from tests.shop.models import Effect
from tests.support.waiting import until

#: How many chains are completed before, during and after the migration.
CHAIN_COUNT = 30


@pytest.fixture
def enqueue(processors):
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
def continuous_load(enqueue):
    """Keep enqueueing a few chains ahead of the workers, and finally wait until all of them are completed."""
    started = []
    errors = []
    is_stopped = threading.Event()

    def run():
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


def completed_count():
    return Job.objects.filter(status="completed", chain_index=1).count()


def assert_every_step_ran_once(started):
    """Check that each job of each chain ran once, at its first attempt."""
    jobs = Job.objects.filter(chain_id__in=started)
    assert jobs.count() == Job.objects.count() == 2 * len(started)
    assert set(jobs.values_list("status", "attempt", "crashes")) == {("completed", 1, 0)}
    assert sorted(Effect.objects.values_list("job_id", flat=True)) == sorted(jobs.values_list("id", flat=True))
    assert not FailedAttempt.objects.exists()


@pytest.mark.postgresql
@pytest.mark.slow
def test_workers_continue_during_a_migration(migrate, start_worker, enqueue):
    """Workers need the tables of 0001 only."""
    migrate("0001")
    start_worker(slots=4, poll_seconds=1)
    with continuous_load(enqueue) as started:
        migrate()
    assert_every_step_ran_once(started)


@contextmanager
def extra_columns():
    """Add a nullable column to each table, as a migration of a later version might."""
    models = apps.get_app_config("django_jobchains").get_models()
    tables = {model._meta.db_table for model in models} - {Chain._meta.db_table}
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f'ALTER TABLE "{table}" ADD COLUMN "of_later" varchar(20) NULL')
        try:
            yield
        finally:
            for table in tables:
                cursor.execute(f'ALTER TABLE "{table}" DROP COLUMN "of_later"')


@pytest.mark.slow
def test_worker_continues_while_columns_are_added(start_worker, enqueue, processors, caplog):
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
