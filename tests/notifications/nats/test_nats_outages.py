"""Outages of NATS, floods and forged hints: jobs run all the same, and enqueueing does not wait."""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

import psutil
import pytest

from django_jobchains.models import Job
from django_jobchains.notifications import chain_finished, get_notifier, job_scheduled, ownership_lost
from django_jobchains.notifications.hints import KINDS, RESYNC_HINTS, encode
from django_jobchains.notifications.nats import NatsNotifier, thread
from django_jobchains.processors import JobType
from django_jobchains.testing.contracts import ReceivedHints
from tests.notifications.nats.processes import jobchains
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants
from tests.support.servers.nats import NatsServer, start_server
from tests.support.waiting import until, until_completed
from tests.support.worker_app import jobs

__all__ = ("start_server",)

pytestmark = pytest.mark.django_db(transaction=True)

#: The longest time that a job waits without hints, and what a busy machine adds to it.
POLL_SECONDS, MARGIN_SECONDS = 2.0, 10.0


@contextmanager
def configured_notifier(server: NatsServer, settings: Any) -> Iterator[NatsNotifier]:
    """Configure this process to use the server, and yield its notifier."""
    settings.JOBCHAINS = jobchains(server.url)
    notifier = get_notifier("default")
    assert isinstance(notifier, NatsNotifier)
    try:
        yield notifier
    finally:
        notifier.close()


@pytest.fixture
def server(start_server):
    return start_server()


@pytest.fixture
def start_worker(server, start_process):
    options = {**jobchains(server.url), "POLL_SECONDS": POLL_SECONDS}
    return lambda: start_process(jobchains=options).until_ready()


def connections_to(server: NatsServer) -> list[Any]:
    """Return the sockets of this process that are connected to the server."""
    return [end for end in psutil.Process().net_connections("tcp") if end.raddr and end.raddr.port == server.port]


def longest_wait_seconds() -> float:
    """Return the longest time from a job's creation to its first attempt."""
    starts = Job.objects.values_list("last_attempt_at", "created_at")
    return max((started - created).total_seconds() for started, created in starts if started)


@pytest.mark.slow
def test_repeated_kills_of_nats_delay_no_job_beyond_the_poll(server, start_worker, settings):
    workers = [start_worker(), start_worker()]
    with configured_notifier(server, settings):
        restarts: list[threading.Timer] = []
        dies_at = time.monotonic() + 1
        while len(restarts) < 4:
            jobs.write.enqueue(0.0)
            if time.monotonic() >= dies_at:
                join_all(restarts)
                server.kill()
                restarts.append(threading.Timer(random.uniform(0.1, 1.2), server.start))
                restarts[-1].start()
                dies_at = time.monotonic() + 2
            time.sleep(0.02)
        join_all(restarts)
        count = Job.objects.count()
        until(lambda: Job.objects.with_status("completed").count() == count, 30, lambda: workers[0].output)
    assert longest_wait_seconds() < POLL_SECONDS + MARGIN_SECONDS
    assert_invariants()
    assert Effect.objects.filter(label="written").count() == count
    for worker in workers:
        assert "Traceback" not in worker.output


def join_all(threads: list[threading.Timer]) -> None:
    for each in threads:
        each.join()


@pytest.mark.parametrize("outage", ["stopped", "paused"])
def test_enqueueing_does_not_wait_for_an_unreachable_server(server, settings, outage):
    quick: JobType[Any, Any] = JobType("worker.quick")
    with configured_notifier(server, settings) as notifier:
        listener = notifier.listen(ReceivedHints())
        until(lambda: listener.is_alive)
        server.stop() if outage == "stopped" else server.pause()
        started = time.monotonic()
        for _ in range(300):
            quick.enqueue()
        assert Job.objects.count() == 300
        assert time.monotonic() - started < 300 * thread.TAKE_SECONDS, "the calls did not wait for the server"
        listener.close()


def test_listener_notices_a_frozen_server_and_its_return(server, settings, monkeypatch):
    assert thread.PROBE_SECONDS + thread.ANSWER_SECONDS + thread.TICK_SECONDS < 15
    monkeypatch.setattr(thread, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr(thread, "ANSWER_SECONDS", 0.3)
    with configured_notifier(server, settings) as notifier:
        received = ReceivedHints()
        listener = notifier.listen(received)
        until(lambda: listener.is_alive and set(received.hints) == set(RESYNC_HINTS))
        server.pause()
        until(lambda: not listener.is_alive)
        received.hints.clear()
        server.resume()
        until(lambda: listener.is_alive)
        until(lambda: set(received.hints) == set(RESYNC_HINTS))
        notifier.publish([job_scheduled("a.b")])
        until(lambda: job_scheduled("a.b") in received.hints)
        listener.close()


@pytest.mark.parametrize("fault", ["hangs", "is cancelled"])
@pytest.mark.parametrize("method", ["connect", "flush", "close"])
def test_hanging_driver_call_is_abandoned(server, settings, monkeypatch, method, fault):
    """The driver suppresses cancellations in some places, and is cancelled itself in others."""
    for name in ("PROBE_SECONDS", "CONNECT_SECONDS", "ANSWER_SECONDS", "STOP_SECONDS"):
        monkeypatch.setattr(thread, name, 0.2)
    remaining = ["flush", "close"] if method == "close" else [method]
    has_ended = threading.Event()

    def faulty(name: str, driver: Callable[..., Any]) -> Callable[..., Any]:
        async def call(*args: Any, **options: Any) -> Any:
            if name not in remaining:
                return await driver(*args, **options)
            remaining.remove(name)
            if name != method:
                raise OSError("the first error, after which the connection is closed")
            if fault == "is cancelled":
                raise asyncio.CancelledError
            while not has_ended.is_set():
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.05)
            return None

        return call

    for name in tuple(remaining):
        monkeypatch.setattr(thread.Client, name, faulty(name, getattr(thread.Client, name)))
    received = ReceivedHints()
    with configured_notifier(server, settings) as notifier:
        listener = notifier.listen(received)
        try:
            until(lambda: not remaining)
            until(lambda: notifier.publish([job_scheduled(uuid4().hex)]) or received.of_a_type())
        finally:
            has_ended.set()
            listener.close()


def test_outbox_is_limited_and_the_connection_abandoned_on_a_dead_network(server, settings, monkeypatch):
    """The test sends more than the sockets and the driver can hold to a server that reads nothing."""
    monkeypatch.setattr(thread, "PROBE_SECONDS", 1.0)
    monkeypatch.setattr(thread, "ANSWER_SECONDS", 1.0)
    with configured_notifier(server, settings) as notifier:
        listener = notifier.listen(ReceivedHints())
        until(lambda: listener.is_alive)
        server.pause()
        for number in range(40):
            notifier.publish([job_scheduled(f"{number}.{step}." + "x" * 180) for step in range(900)])
            until(lambda: not notifier._outbox or not listener.is_alive)
            assert len(notifier._outbox) <= 1_000
        until(lambda: not listener.is_alive)
        until(lambda: not connections_to(server), what="sockets of an abandoned connection are open")
        server.resume()
        until(lambda: listener.is_alive)
        listener.close()


@pytest.mark.slow
def test_flood_delays_no_job_beyond_the_poll(server, start_worker, settings):
    """Ten thousand messages per second on every subject: junk, and forged hints."""
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
        with configured_notifier(server, settings):
            for _ in range(20):
                until_completed(jobs.write.enqueue(0.0), POLL_SECONDS + MARGIN_SECONDS, lambda: worker.output)
    finally:
        stop.set()
        flooding.join()
    assert_invariants()
    assert "Traceback" not in worker.output


def _subjects(hint_about: Callable[[str], Any]) -> list[str]:
    return [encode(hint_about(str(uuid4()))) for _ in range(300)]
