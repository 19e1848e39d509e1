"""The network between a worker and its database is gone, and comes back. Neither end is told."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from django_jobchains import chains
from django_jobchains.models import Job
from tests.chaos.app import jobs
from tests.chaos.oracle import assert_invariants
from tests.chaos.proxy import Proxy, connect_to_database, proxy
from tests.shop.models import Effect
from tests.worker.processes import StartProcess, WorkerProcess
from tests.worker.waiting import until, until_completed

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

__all__ = ("proxy",)

#: What stopping may take beyond its timeout: each of its steps waits for a database that does not answer.
LAST_WORDS = 5.0
#: In which a worker is back at work when the network is.
BACK_SECONDS = 15
#: What a worker says, and where, when the answer to a COMMIT was lost and the job is completed.
COMMITTED = re.compile(r"an error after its commit changes nothing: OperationalError: .*\n(  .*\n)*")


def until_started(process: WorkerProcess) -> None:
    until(lambda: Effect.objects.filter(label="started").exists(), 30, lambda: process.output)


def until_it_works_again(process: WorkerProcess, seconds: float) -> None:
    chain = jobs.write.enqueue(0.0)
    until_completed(chain, seconds, lambda: process.output)
    assert chain.output == process.pid


def assert_ends_well(process: WorkerProcess) -> None:
    process.signal(signal.SIGTERM)
    assert process.wait(LAST_WORDS) == 0
    assert "Traceback" not in COMMITTED.sub("", process.output)


def test_a_worker_that_is_cut_off_stops_its_handlers_before_another_takes_over(
    proxy: Proxy, start_process: StartProcess, tmp_path: Path
) -> None:
    cut_off = start_process("--shutdown-timeout", "1", JOBCHAINS_TEST_DATABASE=proxy.url).until_ready()
    chain = jobs.cut_off.enqueue(str(tmp_path / "aborted"))
    until_started(cut_off)
    proxy.flowing.clear()
    leased_until = Job.objects.get(pk=chain.id).leased_until
    assert leased_until is not None

    other = start_process()
    until_completed(chain, 30, lambda: other.output)
    seconds, reason = (tmp_path / "aborted").read_text().split()
    assert reason == "error"
    assert datetime.fromtimestamp(float(seconds), UTC) < leased_until
    started_at = chain.current_job.last_attempt_at
    assert started_at is not None
    assert started_at >= leased_until
    assert chain.output == other.pid
    assert_ends_well(other)

    proxy.flowing.set()
    until_it_works_again(cut_off, BACK_SECONDS)
    assert_invariants()
    assert_ends_well(cut_off)


def test_a_worker_that_is_cut_off_ends_in_time(proxy: Proxy, start_process: StartProcess) -> None:
    process = start_process("--shutdown-timeout", "1", JOBCHAINS_TEST_DATABASE=proxy.url).until_ready()
    jobs.heed.enqueue()
    until_started(process)
    proxy.flowing.clear()
    since = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert time.monotonic() - since < 1 + LAST_WORDS
    assert "does not answer" in process.output


class Network:
    """A network namespace, and one cable into it. A process ``within`` it sees this host as ``host``."""

    def __init__(self) -> None:
        self.name = f"jobchains-{os.getpid()}"
        self._cable = f"jc{os.getpid()}"
        subnet = f"10.213.{os.getpid() % 250}"
        self.host, self._worker = f"{subnet}.1", f"{subnet}.2"
        self.within = ("ip", "netns", "exec", self.name)
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", "inside", "netns", self.name)
        _run("ip", "address", "add", f"{self.host}/24", "dev", self._cable)
        _run(*self.within, "ip", "address", "add", f"{self._worker}/24", "dev", "inside")
        _run(*self.within, "ip", "link", "set", "inside", "up")
        _run("ip", "link", "set", self._cable, "up")

    def cut(self) -> None:
        """No packet comes back. Inside, the cable seems to be fine."""
        _run("ip", "route", "add", "blackhole", self._worker)

    def mend(self) -> None:
        _run("ip", "route", "delete", "blackhole", self._worker)

    def remove(self) -> None:
        with suppress(subprocess.CalledProcessError):  # it was mended
            self.mend()
        _run("ip", "netns", "delete", self.name)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def network() -> Iterator[Network]:
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root and the program ip: the network is not cut for real")
    try:
        network = Network()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not allowed here: {error.stderr!r}")
    try:
        yield network
    finally:
        network.remove()


@pytest.fixture
def far_proxy(transactional_db: None, network: Network) -> Iterator[Proxy]:
    """At the other end of the cable."""
    proxy = Proxy(connect_to_database, network.host)
    try:
        yield proxy
    finally:
        proxy.close()


def test_a_worker_whose_answers_never_come_is_back_in_fifteen_seconds(
    network: Network, far_proxy: Proxy, start_process: StartProcess
) -> None:
    """The network goes while its statements are under way, and the server gives its sessions up. Nothing that arrives
    ever tells the worker: its connections have to ask."""
    chains.enqueue_many([jobs.write.item(0.02) for _ in range(200)])
    process = start_process("--slots", "4", within=network.within, JOBCHAINS_TEST_DATABASE=far_proxy.url)
    until(lambda: Job.objects.with_status("completed").count() > 30, 30, lambda: process.output)
    far_proxy.flowing.clear()
    time.sleep(0.5)
    network.cut()
    far_proxy.forget_all()
    far_proxy.flowing.set()
    time.sleep(3)
    assert process.is_alive
    network.mend()
    until(lambda: not Job.objects.exclude(status="completed").exists(), 2 * BACK_SECONDS, lambda: process.output)
    assert_invariants()
    assert_ends_well(process)


def test_a_worker_without_a_network_does_not_hang_in_it(
    network: Network, far_proxy: Proxy, start_process: StartProcess
) -> None:
    process = start_process("--shutdown-timeout", "1", within=network.within, JOBCHAINS_TEST_DATABASE=far_proxy.url)
    process.until_ready()
    jobs.heed.enqueue()
    until_started(process)
    network.cut()
    until(lambda: "trying again" in process.output, BACK_SECONDS, lambda: process.output)
    since = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert time.monotonic() - since < 1 + LAST_WORDS
