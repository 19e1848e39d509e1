"""The network between a worker and its database fails and recovers. Neither end is notified."""

import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from datetime import UTC, datetime

import pytest

from django_jobchains import chains
from django_jobchains.models import Job
from tests.chaos.oracle import EXIT_SECONDS, assert_ends_well, until_all_completed
from tests.chaos.proxy import Proxy, connect_to_database, proxy
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants
from tests.support.waiting import until, until_completed
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

__all__ = ("proxy",)

#: The time in which a worker continues after the network has recovered.
BACK_SECONDS = 15
#: What a worker logs after the response to the COMMIT of a completed job was lost.
COMMITTED = re.compile(r"An error after the commit does not change that: OperationalError: .*\n(  .*\n)*")


def until_started(process):
    until(lambda: Effect.objects.filter(label="started").exists(), 30, lambda: process.output)


def until_it_works_again(process, seconds):
    chain = jobs.write.enqueue(0.0)
    until_completed(chain, seconds, lambda: process.output)
    assert chain.output == process.pid


def assert_ends_without_a_traceback(process):
    assert_ends_well(process)
    assert "Traceback" not in COMMITTED.sub("", process.output)


def test_a_disconnected_worker_stops_its_handlers_before_another_worker_takes_over(proxy, start_process, tmp_path):
    cut_off = start_process("--shutdown-timeout", "1", JOBCHAINS_TEST_DATABASE=proxy.url).until_ready()
    aborted = tmp_path / "aborted"
    chain = jobs.cut_off.enqueue(str(aborted))
    until(aborted.exists, 30, lambda: cut_off.output)  # not by a row: its reply could be cut off as well
    proxy.flowing.clear()
    leased_until = Job.objects.get(pk=chain.id).leased_until
    assert leased_until is not None

    other = start_process()
    until_completed(chain, 30, lambda: other.output)
    seconds, reason = aborted.read_text().split()
    assert reason == "error"
    assert datetime.fromtimestamp(float(seconds), UTC) < leased_until
    started_at = chain.current_job.last_attempt_at
    assert started_at is not None
    assert started_at >= leased_until
    assert chain.output == other.pid
    assert_ends_without_a_traceback(other)

    proxy.flowing.set()
    until_it_works_again(cut_off, BACK_SECONDS)
    assert_invariants()
    assert_ends_without_a_traceback(cut_off)


def test_a_disconnected_worker_ends_in_time(proxy, start_process):
    process = start_process("--shutdown-timeout", "1", JOBCHAINS_TEST_DATABASE=proxy.url).until_ready()
    jobs.heed.enqueue()
    until_started(process)
    proxy.flowing.clear()
    since = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert time.monotonic() - since < 1 + EXIT_SECONDS
    assert "does not answer" in process.output


class Network:
    """A network namespace with one virtual cable. A process ``within`` it reaches this host as ``host``."""

    def __init__(self):
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

    def cut(self):
        """Drop all packets from outside. Inside, the cable seems to work."""
        _run("ip", "route", "add", "blackhole", self._worker)

    def mend(self):
        _run("ip", "route", "delete", "blackhole", self._worker)

    def remove(self):
        with suppress(subprocess.CalledProcessError):  # the route was deleted already
            self.mend()
        _run("ip", "netns", "delete", self.name)


def _run(*command):
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture
def network():
    if os.geteuid() != 0 or not shutil.which("ip"):
        pytest.skip("needs root and the program ip to cut the network")
    try:
        network = Network()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"network namespaces are not allowed here: {error.stderr!r}")
    try:
        yield network
    finally:
        network.remove()


@pytest.fixture
def far_proxy(transactional_db, network):
    """Yield a proxy for the server, which processes at the other end of the cable can reach."""
    proxy = Proxy(connect_to_database, network.host)
    try:
        yield proxy
    finally:
        proxy.close()


def test_a_worker_without_replies_recovers_in_fifteen_seconds(network, far_proxy, start_process):
    """The network fails during its statements, and the server ends its sessions. The worker receives no packet about
    that, so its connections must send probes."""
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
    until_all_completed(process, seconds=2 * BACK_SECONDS)
    assert_invariants()
    assert_ends_without_a_traceback(process)


def test_a_worker_does_not_hang_without_a_network(network, far_proxy, start_process):
    process = start_process("--shutdown-timeout", "1", within=network.within, JOBCHAINS_TEST_DATABASE=far_proxy.url)
    process.until_ready()
    jobs.heed.enqueue()
    until_started(process)
    network.cut()
    until(lambda: "trying again" in process.output, BACK_SECONDS, lambda: process.output)
    since = time.monotonic()
    process.signal(signal.SIGTERM)
    assert process.wait() == 0
    assert time.monotonic() - since < 1 + EXIT_SECONDS
