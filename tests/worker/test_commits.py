"""A commit without a reply may or may not have succeeded: the lease number decides."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection

from django_jobchains.models import Job
from django_jobchains.processors import RunningJob
from tests.shop.models import Effect
from tests.support.waiting import stays, until, until_completed

pytestmark = pytest.mark.postgresql


def lose_the_reply(*, is_committed: bool) -> None:
    """Cut off this thread's next commit, before or after it reaches the server."""
    raw = connection.connection
    commit: Callable[[], None] = raw.commit

    def cut() -> None:
        if is_committed:
            commit()
        raw.close()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    raw.commit = cut


@pytest.mark.parametrize("is_committed", [True, False])
def test_completion_is_written_once_if_its_commit_gets_no_reply(processors, start_worker, settings, is_committed):
    settings.JOBCHAINS = {"REAP_SECONDS": 0.1}

    @processors.register("worker.cut")
    def cut(job: RunningJob[str]) -> Any:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="written")
            if job.attempt == 1 and job.input == "first":
                lose_the_reply(is_committed=is_committed)
            return job.continue_with("worker.cut", "second") if job.input == "first" else "done"

    start_worker(poll_seconds=0.2)
    chain = cut.enqueue("first")
    until(lambda: chain.refresh().status == "completed" and chain.jobs.count() == 2)
    assert [job.attempt for job in chain.jobs] == ([1, 1] if is_committed else [2, 1])
    assert Effect.objects.filter(job_id=chain.id).count() == 1
    assert stays(lambda: Job.objects.count() == 2 and Effect.objects.count() == 2, 0.3)


@pytest.mark.parametrize("is_committed", [True, False])
def test_prepare_is_retried_if_its_commit_gets_no_reply(processors, start_worker, is_committed):
    @processors.register("worker.cut_early")
    def cut_early(job: RunningJob[None]) -> None:
        with job.prepare():
            Effect.objects.create(job_id=job.id, label="prepared")
            if job.attempt == 1:
                lose_the_reply(is_committed=is_committed)
        Effect.objects.create(job_id=job.id, label="continued")

    start_worker(poll_seconds=0.2)
    chain = cut_early.enqueue()
    until_completed(chain)
    assert chain.current_job.attempt == 2
    assert Effect.objects.filter(label="prepared").count() == 1 + is_committed
    assert Effect.objects.filter(label="continued").count() == 1
