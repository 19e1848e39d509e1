"""NATS dies, hangs, is flooded and lied to: jobs run all the same, and enqueueing is not slowed."""

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psutil
import pytest

from django_jobchains.models import Job
from django_jobchains.notifications import chain_finished, get_notifier, job_scheduled, nats_thread, ownership_lost
from django_jobchains.notifications.hints import KINDS, LOOK, encode
from django_jobchains.notifications.nats import NatsNotifier
from django_jobchains.processors import JobType
from tests.chaos.app import jobs
from tests.chaos.oracle import assert_invariants
from tests.notifications.contract import Heard
from tests.notifications.nats.processes import jobchains
from tests.notifications.nats.server import NatsServer, StartServer, start_server
from tests.shop.models import Effect
from tests.worker.processes import StartProcess, WorkerProcess
from tests.worker.waiting import stays, until, until_completed

__all__ = ("start_server",)

pytestmark = pytest.mark.django_db(transaction=True)

#: What a job may wait when no hint arrives, and what a busy machine adds.
POLL_SECONDS, MARGIN_SECONDS = 2.0, 4.0


@contextmanager
def used(server: NatsServer, settings: Any) -> Iterator[NatsNotifier]:
    """The notifier of this process, which uses the server."""
    settings.JOBCHAINS = jobchains(server.url)
    notifier = get_notifier("default")
    assert isinstance(notifier, NatsNotifier)
    try:
        yield notifier
    finally:
        notifier.close()


@pytest.fixture
def server(start_server: StartServer) -> NatsServer:
    return start_server()


@pytest.fixture
def start_worker(server: NatsServer, start_process: StartProcess) -> Callable[[], WorkerProcess]:
    options = {**jobchains(server.url), "POLL_SECONDS": POLL_SECONDS}
    return lambda: start_process(jobchains=options).until_ready()


def connections_to(server: NatsServer) -> list[Any]:
    """Those of this process."""
    return [end for end in psutil.Process().net_connections("tcp") if end.raddr and end.raddr.port == server.port]


def latest() -> float:
    """How long a job waited at most for its first attempt, in seconds."""
    starts = Job.objects.values_list("last_attempt_at", "created_at")
    return max((started - created).total_seconds() for started, created in starts if started)


@pytest.mark.slow
def test_a_server_that_dies_every_two_seconds_delays_no_job_beyond_the_poll(
    server: NatsServer, start_worker: Callable[[], WorkerProcess], settings: Any
) -> None:
    workers = [start_worker(), start_worker()]
    with used(server, settings):
        ends_at, dies_at = time.monotonic() + 8, time.monotonic() + 1
        while time.monotonic() < ends_at:
            jobs.write.enqueue(0.0)
            if time.monotonic() >= dies_at:
                server.kill()
                dies_at = time.monotonic() + 2
                threading.Timer(random.uniform(0.1, 1.2), server.start).start()
            time.sleep(0.02)
        count = Job.objects.count()
        until(lambda: Job.objects.with_status("completed").count() == count, 15, lambda: workers[0].output)
    assert count > 100
    assert latest() < POLL_SECONDS + MARGIN_SECONDS
    assert_invariants()
    assert Effect.objects.filter(label="written").count() == count
    for worker in workers:
        assert "Traceback" not in worker.output


@pytest.mark.parametrize("away", ["stopped", "paused"])
def test_enqueueing_is_not_slowed_by_a_server_that_is(server: NatsServer, settings: Any, away: str) -> None:
    quick: JobType[Any, Any] = JobType("worker.quick")
    with used(server, settings) as notifier:
        listener = notifier.listen(Heard())
        until(lambda: listener.is_alive)
        server.stop() if away == "stopped" else server.pause()
        slowest = 0.0
        for _ in range(300):
            started = time.monotonic()
            quick.enqueue()
            slowest = max(slowest, time.monotonic() - started)
        assert Job.objects.count() == 300
        assert slowest < 1.5, "waiting for the server takes longer"
        listener.close()


def test_a_server_that_hangs_is_noticed_and_one_that_is_back_is_heard(
    server: NatsServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nats_thread.PROBE_SECONDS + nats_thread.ANSWER_SECONDS + nats_thread.TICK_SECONDS < 15
    monkeypatch.setattr(nats_thread, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr(nats_thread, "ANSWER_SECONDS", 0.3)
    with used(server, settings) as notifier:
        heard = Heard()
        listener = notifier.listen(heard)
        until(lambda: listener.is_alive and heard.hints == [*LOOK])
        server.pause()
        until(lambda: not listener.is_alive, 5)
        server.resume()
        until(lambda: listener.is_alive)
        until(lambda: heard.hints == [*LOOK, *LOOK])
        notifier.publish([job_scheduled("a.b")])
        until(lambda: job_scheduled("a.b") in heard.hints)
        listener.close()


def test_what_a_dead_network_does_not_take_is_bounded_and_given_up(
    server: NatsServer, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than sockets and the driver hold is sent to a server that reads nothing."""
    monkeypatch.setattr(nats_thread, "PROBE_SECONDS", 1.0)
    monkeypatch.setattr(nats_thread, "ANSWER_SECONDS", 1.0)
    with used(server, settings) as notifier:
        listener = notifier.listen(Heard())
        until(lambda: listener.is_alive)
        server.pause()
        for number in range(40):
            notifier.publish([job_scheduled(f"{number}.{step}." + "x" * 180) for step in range(900)])
            until(lambda: not notifier._connection._waiting or not listener.is_alive)
            assert len(notifier._connection._waiting) <= 1_000
        until(lambda: not listener.is_alive)
        until(lambda: not connections_to(server), what="no socket of a connection that was given up")
        server.resume()
        until(lambda: listener.is_alive)
        listener.close()


def test_after_a_restart_listeners_look(server: NatsServer, settings: Any) -> None:
    with used(server, settings) as notifier:
        heard = Heard()
        listener = notifier.listen(heard)
        until(lambda: listener.is_alive)
        for times in (2, 3):
            server.kill()
            until(lambda: not listener.is_alive)
            server.start()
            until(lambda times=times: heard.hints == [*LOOK] * times)  # type: ignore[misc]
        listener.close()


@pytest.mark.slow
def test_a_flood_delays_no_job_beyond_the_poll(
    server: NatsServer, start_worker: Callable[[], WorkerProcess], settings: Any
) -> None:
    """Ten thousand messages a second on every subject: junk, and hints as good as real ones."""
    worker = start_worker()
    stop = threading.Event()

    def flood() -> None:
        forged = {
            "job_scheduled": [encode(job_scheduled("chaos.write", 3)), "9:abc:chaos.write", *_subjects(job_scheduled)],
            "chain_finished": _subjects(chain_finished),
            "ownership_lost": _subjects(ownership_lost),
        }
        while not stop.is_set():
            started = time.monotonic()
            for kind in sorted(KINDS):
                texts = [text.encode() for text in forged[kind]] + [b"junk\xff"] * 250
                server.publish(f"django_jobchains.{kind}", *random.sample(texts, 500) * 2)
            stop.wait(max(0, started + 0.1 - time.monotonic()))

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        with used(server, settings):
            for _ in range(20):
                until_completed(jobs.write.enqueue(0.0), POLL_SECONDS + MARGIN_SECONDS, lambda: worker.output)
    finally:
        stop.set()
        flooding.join()
    assert_invariants()
    assert "Traceback" not in worker.output


@pytest.mark.slow
def test_a_worker_that_is_told_lies_aborts_no_job(
    server: NatsServer, start_worker: Callable[[], WorkerProcess]
) -> None:
    worker = start_worker()
    chain = jobs.hold.enqueue()
    until(lambda: Effect.objects.exists(), 15, lambda: worker.output)
    lies = [encode(ownership_lost(job)).encode() for job in (chain.id, "*", uuid4())]
    for _ in range(50):
        server.publish("django_jobchains.ownership_lost", *lies)
    assert stays(lambda: Effect.objects.count() == 1, 1.0)
    Effect.objects.create(job_id=chain.id, label="go on")
    until_completed(chain, 15, lambda: worker.output)
    assert chain.current_job.attempt == 1
    assert_invariants()


def _subjects(hint_about: Callable[[str], Any]) -> list[str]:
    return [encode(hint_about(str(uuid4()))) for _ in range(300)]
