"""Workers behind PgBouncer in transaction mode, where each statement may use another session."""

import os
from functools import partial

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.chaos.oracle import assert_ends_well, until_all_completed, write_and_attempt
from tests.support.invariants import assert_invariants
from tests.support.servers import Unavailable
from tests.support.servers.pgbouncer import Pooler
from tests.support.waiting import until, until_completed
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

#: The number of server connections, fewer than a worker has threads.
POOL_SIZE = 3


@pytest.fixture
def pooler(transactional_db, tmp_path):
    try:
        pooler = Pooler(tmp_path / "pooler", _server(), POOL_SIZE)
        pooler.start()
    except Unavailable as error:
        pytest.skip(f"needs PgBouncer to run workers behind a transaction pooler: {error}")
    try:
        yield pooler
    finally:
        pooler.kill()


def _server():
    names = {"host": "HOST", "port": "PORT", "user": "USER", "password": "PASSWORD"}
    values = {name: connection.settings_dict[key] for name, key in names.items()}
    return " ".join(f"{name}={value}" for name, value in values.items() if value)


@pytest.fixture
def start_behind(pooler, start_process):
    """Start workers behind the pooler."""
    return partial(start_process, **pooler.environment(os.environ["JOBCHAINS_TEST_DATABASE"]))


def assert_ends_without_errors(process):
    assert_ends_well(process)
    assert "prepared statement" not in process.output
    assert "Traceback" not in process.output


def test_a_worker_behind_a_transaction_pooler_runs_every_job_and_reports_that_it_receives_no_hints(start_behind):
    write_and_attempt(200, 100)
    chains.enqueue_many([jobs.first.item(3) for _ in range(10)])
    process = start_behind("--slots", "8", LEASE_SECONDS="60")
    until_all_completed(process)
    assert not FailedAttempt.objects.exists()
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}
    assert_invariants()
    until(lambda: "do not arrive" in process.output, 15, lambda: process.output)
    assert "listen_using" in process.output
    chain = jobs.write.enqueue(0.0)
    until_completed(chain, 15, lambda: process.output)
    assert_ends_without_errors(process)


def test_a_worker_whose_settings_do_not_mention_the_pooler_runs_every_job_without_an_error(pooler, start_process):
    write_and_attempt(100, 50)
    chains.enqueue_many([jobs.first.item(3) for _ in range(10)])
    unaware = {**pooler.environment(""), "JOBCHAINS_TEST_DIRECT": ""}
    process = start_process("--slots", "8", LEASE_SECONDS="60", **unaware)
    until_all_completed(process)
    assert not FailedAttempt.objects.exists()
    assert_invariants()
    assert "DISABLE_SERVER_SIDE_CURSORS" in process.output
    assert_ends_without_errors(process)


def test_a_worker_that_listens_without_the_pooler_is_woken(start_behind):
    options = {"POLL_SECONDS": 600, "NOTIFIER": {"OPTIONS": {"listen_using": "direct"}}}
    process = start_behind(jobchains=options).until_ready()
    for _ in range(3):
        chain = jobs.write.enqueue(0.0)
        until_completed(chain, 15, lambda: process.output)
    assert "wake-ups failed" not in process.output
    assert_ends_without_errors(process)
