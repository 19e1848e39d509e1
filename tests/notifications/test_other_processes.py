"""Commits wake workers in other processes, with the database's own notifier."""

import pytest
from django.db import transaction

from tests.support.waiting import until, until_completed
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

POLL_SECONDS = 60
#: A job that starts within this time has not waited for the poll.
MAX_WAIT_SECONDS = 15


def test_commit_wakes_an_idle_worker_in_another_process(start_process):
    process = start_process(jobchains={"POLL_SECONDS": POLL_SECONDS}).until_ready()
    for _ in range(5):
        with transaction.atomic():
            chain = jobs.nothing.enqueue()
        until_completed(chain, MAX_WAIT_SECONDS, lambda: process.output)


def test_commit_in_another_process_wakes_a_worker_of_this_one(start_worker, start_process, registry):
    """The worker here runs the continuations of a job that only the other worker runs."""
    registry.add(jobs.processors)
    worker = start_worker(types=["chaos.step"])
    until(worker.components.claim_loop.idle.is_set)
    chain = jobs.first.enqueue(1)
    process = start_process("--type", "chaos.first", "--burst", jobchains={"POLL_SECONDS": POLL_SECONDS})
    until(lambda: chain.refresh().status == "completed" and chain.jobs.count() == 3, 60, lambda: process.output)
    for job in chain.jobs:
        if job.chain_index:
            assert job.last_attempt_at is not None
            assert (job.last_attempt_at - job.created_at).total_seconds() < MAX_WAIT_SECONDS
