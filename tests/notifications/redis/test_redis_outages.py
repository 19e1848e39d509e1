"""Outages of Redis only delay hints: no call hangs, and no job waits longer than the poll interval."""

import json
import threading
import time
from typing import Any

import pytest
from django.db.models import F

from django_jobchains.models import Job
from django_jobchains.notifications import Hint, base, get_notifier, job_scheduled, redis
from django_jobchains.notifications.base import Listener
from django_jobchains.notifications.hints import RESYNC_HINTS
from django_jobchains.testing.contracts import ReceivedHints
from tests.notifications.redis.silent_proxy import SilentProxy, proxy_to
from tests.shop.models import Effect
from tests.support.servers.redis import RedisServer, cache_of, notifier_setting
from tests.support.waiting import stays, until
from tests.support.worker_app import jobs

pytestmark = pytest.mark.django_db(transaction=True)
#: What a busy machine adds to the time a job waits.
MARGIN_SECONDS = 10


@pytest.fixture(autouse=True)
def _redis(redis_server, use_redis, monkeypatch):
    monkeypatch.setattr(redis, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(base, "MAX_RETRY_SECONDS", 0.4)
    use_redis(redis_server.url)


#: The notifier's default.
TIMEOUT_SECONDS = 0.2
OUTAGES = [RedisServer.stop, RedisServer.kill, RedisServer.freeze]


@pytest.mark.parametrize("outage", [RedisServer.stop, RedisServer.freeze])
@pytest.mark.parametrize("was_connected", [True, False])
def test_enqueueing_does_not_wait_for_an_unreachable_redis(redis_server, outage, was_connected, caplog):
    if was_connected:
        jobs.nothing.enqueue()
    outage(redis_server)
    started = time.monotonic()
    for _ in range(300):
        jobs.nothing.enqueue()
    assert Job.objects.count() == 300 + was_connected
    assert time.monotonic() - started < 300 * TIMEOUT_SECONDS / 2, "most calls did not wait for the server"
    assert caplog.text.count("Wake-ups were not sent") >= 1


@pytest.mark.parametrize("outage", OUTAGES)
def test_hints_arrive_again_after_an_outage(redis_server, outage, monkeypatch):
    monkeypatch.setattr(redis, "MAX_PAUSE_SECONDS", 0.5)
    notifier = get_notifier("default")
    notifier.publish([job_scheduled("before")])
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


def test_hint_is_sent_over_a_new_connection_after_a_restart(redis_server, use_redis):
    use_redis(redis_server.url, {"timeout_seconds": 15})
    notifier = get_notifier("default")
    notifier.send([job_scheduled("before")])
    redis_server.kill()
    redis_server.start()
    notifier.send([job_scheduled("after")])


@pytest.mark.parametrize("outage", OUTAGES)
def test_budget_is_unknown_during_an_outage(redis_server, outage):
    hint = Hint("job_scheduled", "shop.ship", 5, "aa")
    notifier = get_notifier("default")
    until(lambda: notifier.take(hint, 3, "a") is not None)
    outage(redis_server)
    started = time.monotonic()
    assert [notifier.take(hint, 3, "a") for _ in range(100)] == [None] * 100
    assert time.monotonic() - started < 100 * TIMEOUT_SECONDS / 2, "most calls did not wait for the server"


@pytest.mark.parametrize("seconds", [0.2, pytest.param(redis.PROBE_SECONDS, marks=pytest.mark.slow)])
def test_silent_connection_is_replaced(redis_server, use_redis, monkeypatch, seconds):
    """Neither end learns that a firewall has dropped a connection; new connections work."""
    monkeypatch.setattr(redis, "PROBE_SECONDS", seconds)
    with proxy_to(redis_server.port) as proxy:
        use_redis(f"redis://127.0.0.1:{proxy.port}/0")
        received = ReceivedHints()
        listener = get_notifier("default").listen(received)
        try:
            until(lambda: set(received.hints) == set(RESYNC_HINTS))
            # On a busy machine, a response may be late, and then the connection is replaced too.
            until(lambda: is_kept(proxy, listener, seconds * 4 if seconds < 1 else 0.1))
            received.hints.clear()
            proxy.silence()
            until(lambda: set(received.hints) == set(RESYNC_HINTS), seconds + 30)
            get_notifier("default").publish([job_scheduled("shop.ship")])
            until(lambda: received.of_a_type())
        finally:
            listener.close()


def is_kept(proxy: SilentProxy, listener: Listener, seconds: float) -> bool:
    count = proxy.count
    return stays(lambda: proxy.count == count and listener.is_alive, seconds)


def test_listener_of_a_frozen_redis_is_not_alive_and_can_be_closed(redis_server, monkeypatch):
    monkeypatch.setattr(redis, "PROBE_SECONDS", 0.2)
    before = set(threading.enumerate())
    listener = get_notifier("default").listen(ReceivedHints())
    until(lambda: listener.is_alive)
    redis_server.freeze()
    until(lambda: not listener.is_alive)
    listener.close()
    until(lambda: set(threading.enumerate()) <= before)


@pytest.mark.slow
def test_repeated_kills_of_redis_neither_lose_nor_repeat_jobs(redis_server, start_process):
    poll_seconds = 5
    workers = [
        start_process(
            jobchains={"POLL_SECONDS": poll_seconds, "NOTIFIER": notifier_setting()},
            DJANGO_SETTINGS_MODULE="tests.notifications.redis.worker_settings",
            LEASE_SECONDS="60",
            JOBCHAINS_TEST_CACHES=json.dumps(cache_of(redis_server.url)),
        )
        for _ in range(2)
    ]
    for worker in workers:
        worker.until_ready()
    done = threading.Event()

    def kill_repeatedly() -> None:
        while not done.wait(2):
            redis_server.kill()
            done.wait(0.3)
            redis_server.start()

    killer = threading.Thread(target=kill_repeatedly)
    killer.start()
    try:
        ends_at, count = time.monotonic() + 9, 0
        while time.monotonic() < ends_at:
            jobs.write.enqueue(0)
            count += 1
            time.sleep(0.01)
    finally:
        done.set()
        killer.join()
    until(lambda: Job.objects.filter(status="completed").count() == count, 30, lambda: workers[0].output)
    waits = Job.objects.values_list(F("last_attempt_at") - F("created_at"), flat=True)
    assert max(wait.total_seconds() for wait in waits) < poll_seconds + MARGIN_SECONDS
    assert count == Effect.objects.count() == Effect.objects.values("job_id").distinct().count()
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}
