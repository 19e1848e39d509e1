"""Workers behind PgBouncer in transaction mode, where each statement may use another session."""

import os
import shutil
import socket
import subprocess

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.chaos.oracle import assert_ends_well, until_all_completed, write_and_attempt
from tests.support.invariants import assert_invariants
from tests.support.servers import free_port
from tests.support.waiting import until, until_completed
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

#: The number of server connections, fewer than a worker has threads.
POOL_SIZE = 3
CONFIGURATION = """
[databases]
* = {server}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool_size}
ignore_startup_parameters = extra_float_digits,options
"""


class Pooler:
    def __init__(self, program, folder):
        self.port = free_port()
        configuration = folder / "pgbouncer.ini"
        configuration.write_text(CONFIGURATION.format(server=" ".join(_server()), port=self.port, pool_size=POOL_SIZE))
        self._log = folder / "pgbouncer.log"
        # PgBouncer refuses to run as root.
        as_user = {"user": "nobody", "extra_groups": []} if os.geteuid() == 0 else {}
        with configuration.open("rb") as file, self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, f"/dev/fd/{file.fileno()}"], pass_fds=[file.fileno()], stdout=log, stderr=log, **as_user
            )
        until(self._is_ready, 15, self._log.read_text)

    @property
    def environment(self):
        """Return the environment of a worker behind the pooler, with the alias ``direct`` for the server itself."""
        url = f"postgresql://{connection.settings_dict['USER']}@127.0.0.1:{self.port}/"
        return {"JOBCHAINS_TEST_DATABASE": url, "JOBCHAINS_TEST_DIRECT": os.environ["JOBCHAINS_TEST_DATABASE"]}

    def _is_ready(self):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self):
        self._process.kill()
        self._process.wait()


def _server():
    for name, key in (("host", "HOST"), ("port", "PORT"), ("user", "USER"), ("password", "PASSWORD")):
        if value := connection.settings_dict[key]:
            yield f"{name}={value}"


@pytest.fixture
def pooler(transactional_db, tmp_path):
    program = shutil.which("pgbouncer")
    if program is None:
        pytest.skip("needs PgBouncer to run workers behind a transaction pooler")
    pooler = Pooler(program, tmp_path)
    try:
        yield pooler
    finally:
        pooler.stop()


def assert_ends_without_errors(process):
    assert_ends_well(process)
    assert "prepared statement" not in process.output
    assert "Traceback" not in process.output


def test_a_worker_behind_a_transaction_pooler_runs_every_job_and_reports_that_it_receives_no_hints(
    pooler, start_process
):
    write_and_attempt(200, 100)
    chains.enqueue_many([jobs.first.item(3) for _ in range(10)])
    process = start_process("--slots", "8", LEASE_SECONDS="60", **pooler.environment)
    until_all_completed(process)
    assert not FailedAttempt.objects.exists()
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}
    assert_invariants()
    until(lambda: "do not arrive" in process.output, 15, lambda: process.output)
    assert "listen_using" in process.output
    chain = jobs.write.enqueue(0.0)
    until_completed(chain, 15, lambda: process.output)
    assert_ends_without_errors(process)


def test_a_worker_that_listens_without_the_pooler_is_woken(pooler, start_process):
    options = {"POLL_SECONDS": 600, "NOTIFIER": {"OPTIONS": {"listen_using": "direct"}}}
    process = start_process(jobchains=options, **pooler.environment).until_ready()
    for _ in range(3):
        chain = jobs.write.enqueue(0.0)
        until_completed(chain, 15, lambda: process.output)
    assert "wake-ups failed" not in process.output
    assert_ends_without_errors(process)
