"""A Redis that is away costs time alone: no enqueue hangs, no job waits longer than the poll interval."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import pytest
from django.db.models import F

from django_jobchains.models import Job
from django_jobchains.notifications import breaker, get_notifier, job_scheduled, listening, redis
from django_jobchains.notifications.hints import LOOK
from django_jobchains.processors import Processors
from tests.chaos.app import jobs
from tests.notifications.contract import Heard
from tests.notifications.gate import gate_to
from tests.notifications.redis.server import RedisServer, cache_of, notifier_setting
from tests.shop.models import Effect
from tests.worker.fixtures import StartWorker
from tests.worker.processes import StartProcess
from tests.worker.waiting import stays, until, until_completed

pytestmark = pytest.mark.django_db(transaction=True)
UseRedis = Callable[..., None]


@pytest.fixture(autouse=True)
def _redis(redis_server: RedisServer, use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(listening, "LAST_RETRY_SECONDS", 0.4)
    use_redis(redis_server.url)


@pytest.fixture
def heard() -> Iterator[Heard]:
    """What a listener hears that was connected once."""
    heard = Heard()
    listener = get_notifier("default").listen(heard)
    until(lambda: heard.hints == [*LOOK])
    yield heard
    listener.close()


OUTAGES = [RedisServer.stop, RedisServer.kill, RedisServer.freeze]


@pytest.mark.parametrize("outage", [RedisServer.stop, RedisServer.freeze])
@pytest.mark.parametrize("was_connected", [True, False])
def test_no_enqueue_waits_for_a_redis_that_is_away(
    redis_server: RedisServer, outage: Callable[[RedisServer], None], was_connected: bool, caplog: Any
) -> None:
    if was_connected:
        jobs.nothing.enqueue()
    outage(redis_server)
    seconds = []
    for _ in range(300):
        started = time.monotonic()
        jobs.nothing.enqueue()
        seconds.append(time.monotonic() - started)
    assert Job.objects.count() == 300 + was_connected
    assert max(seconds) < 1.5
    # Of the timeout: what is not even tried takes none of it.
    assert median(seconds) < 0.1
    assert sum(each > 0.19 for each in seconds) <= 10
    assert 1 <= caplog.text.count("Wake-ups were not sent") <= 3


@pytest.mark.parametrize("outage", OUTAGES)
def test_hints_arrive_again_soon_after(
    redis_server: RedisServer, outage: Callable[[RedisServer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(breaker, "LAST_PAUSE_SECONDS", 0.5)
    notifier = get_notifier("default")
    notifier.send([job_scheduled("before")])
    outage(redis_server)
    with pytest.raises(Exception, match=r"refused|closed|Timeout"):
        notifier.send([job_scheduled("lost")])
    redis_server.thaw() if outage == RedisServer.freeze else redis_server.start()
    with redis_server.admin as admin, admin.pubsub() as session:
        session.subscribe("django_jobchains.job_scheduled")
        notifier.publish([job_scheduled("skipped")])

        def arrives() -> Any:
            notifier.publish([job_scheduled("after")])
            return session.get_message(timeout=0.1, ignore_subscribe_messages=True)

        until(arrives)


def test_a_server_that_came_back_unnoticed_gets_the_next_hint(redis_server: RedisServer) -> None:
    notifier = get_notifier("default")
    notifier.send([job_scheduled("before")])
    redis_server.kill()
    redis_server.start()
    notifier.send([job_scheduled("after")])


@pytest.mark.parametrize("outage", OUTAGES)
def test_a_budget_that_cannot_be_asked_for_is_not_known(
    redis_server: RedisServer, outage: Callable[[RedisServer], None]
) -> None:
    hint = redis.Hint("job_scheduled", "shop.ship", 5, "aa")
    notifier = get_notifier("default")
    assert notifier.take(hint, 3, "a") == 3
    outage(redis_server)
    started = time.monotonic()
    assert [notifier.take(hint, 3, "a") for _ in range(100)] == [None] * 100
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("outage", [RedisServer.stop, RedisServer.kill])
def test_after_each_connection_the_listener_says_look(
    redis_server: RedisServer, outage: Callable[[RedisServer], None], heard: Heard
) -> None:
    for count in (2, 3):
        outage(redis_server)
        redis_server.start()
        until(lambda count=count: heard.hints == [*LOOK] * count)  # type: ignore[misc]


@pytest.mark.parametrize("seconds", [0.2, pytest.param(redis.PROBE_SECONDS, marks=pytest.mark.slow)])
def test_a_connection_that_died_silently_is_replaced(
    redis_server: RedisServer, use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    """As after a firewall forgot it: nobody is told, and new connections pass."""
    monkeypatch.setattr(redis, "PROBE_SECONDS", seconds)
    with gate_to(redis_server.port) as gate:
        use_redis(f"redis://127.0.0.1:{gate.port}/0")
        heard = Heard()
        listener = get_notifier("default").listen(heard)
        try:
            until(lambda: heard.hints == [*LOOK])
            assert stays(lambda: gate.count == 1 and listener.is_alive, seconds * 4 if seconds < 1 else 0.1)
            gate.silence()
            until(lambda: heard.hints == [*LOOK] * 2, 15)
            get_notifier("default").publish([job_scheduled("shop.ship")])
            until(lambda: heard.of_a_type())
        finally:
            listener.close()


def test_a_frozen_redis_turns_the_listener_red_and_does_not_keep_it_from_closing(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis, "PROBE_SECONDS", 0.2)
    before = set(threading.enumerate())
    listener = get_notifier("default").listen(Heard())
    until(lambda: listener.is_alive)
    redis_server.freeze()
    until(lambda: not listener.is_alive)
    started = time.monotonic()
    listener.close()
    assert time.monotonic() - started < 2
    until(lambda: set(threading.enumerate()) == before, 5)


def test_a_job_committed_during_an_outage_runs_when_the_listener_is_back(
    processors: Processors, start_worker: StartWorker, redis_server: RedisServer
) -> None:
    """The worker polls once a minute."""
    quick = processors.register("worker.quick")(lambda job: None)
    worker = start_worker()
    until(lambda: worker.parts.listener and worker.parts.listener.is_alive)
    until(lambda: stays(worker.parts.loop.idle.is_set, 0.1))  # it looks twice when the listener has connected
    redis_server.kill()
    until(lambda: not worker.parts.listener.is_alive)  # type: ignore[union-attr]
    chain = quick.enqueue()
    assert stays(lambda: chain.refresh().status != "completed", 0.3)
    redis_server.start()
    until_completed(chain, 10)


@pytest.mark.slow
def test_a_redis_that_is_killed_every_two_seconds_loses_delays_and_doubles_nothing(
    redis_server: RedisServer, start_process: StartProcess
) -> None:
    poll_seconds = 3
    workers = [
        start_process(
            jobchains={"POLL_SECONDS": poll_seconds, "NOTIFIER": notifier_setting()},
            DJANGO_SETTINGS_MODULE="tests.notifications.redis.worker_settings",
            JOBCHAINS_TEST_CACHES=json.dumps(cache_of(redis_server.url)),
        )
        for _ in range(2)
    ]
    for worker in workers:
        worker.until_ready()
    done = threading.Event()

    def harass() -> None:
        while not done.wait(2):
            redis_server.kill()
            done.wait(0.3)
            redis_server.start()

    harassing = threading.Thread(target=harass)
    harassing.start()
    try:
        until_at, count = time.monotonic() + 9, 0
        while time.monotonic() < until_at:
            jobs.write.enqueue(0)
            count += 1
            time.sleep(0.01)
    finally:
        done.set()
        harassing.join()
    until(lambda: Job.objects.filter(status="completed").count() == count, 30, lambda: workers[0].output)
    waits = Job.objects.values_list(F("last_attempt_at") - F("created_at"), flat=True)
    assert max(wait.total_seconds() for wait in waits) < poll_seconds + 2
    assert count == Effect.objects.count() == Effect.objects.values("job_id").distinct().count()
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}
