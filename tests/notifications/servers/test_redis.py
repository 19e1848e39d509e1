"""The Redis notifier: stored budgets, its connections, and outages that only Redis has."""

import time
from dataclasses import replace

import pytest

from django_jobchains.notifications import Hint, base, get_notifier, job_scheduled, redis
from django_jobchains.notifications.hints import RESYNC_HINTS
from django_jobchains.notifications.redis import RedisNotifier
from django_jobchains.testing.contracts import ReceivedHints
from tests.notifications.servers.silent_proxy import proxy_to
from tests.support.servers.redis import RedisServer
from tests.support.waiting import stays, until

SHIP = replace(job_scheduled("shop.ship", 5), id="00000000000000aa")
#: Options of notifiers whose hints must arrive: on a busy machine, the default timeout might expire.
PATIENT = {"timeout_seconds": 15}


@pytest.fixture(autouse=True)
def _redis(redis_server, use_redis, monkeypatch):
    monkeypatch.setattr(redis, "TICK_SECONDS", 0.05)
    monkeypatch.setattr(base, "MAX_RETRY_SECONDS", 0.4)
    use_redis(redis_server.url, PATIENT)


@pytest.fixture
def notifiers():
    """Two notifiers, which stand for two processes."""
    pair = RedisNotifier("default", **PATIENT), RedisNotifier("default", **PATIENT)
    yield pair
    for notifier in pair:
        notifier.close()


def test_budget_expires_soon(notifiers, redis_server):
    notifiers[0].take(SHIP, 3, "a")
    with redis_server.admin as admin:
        assert [key.decode() for key in admin.scan_iter()] == [f"django_jobchains:taken:a:{SHIP.id}"]
        assert 0 < admin.pttl(f"django_jobchains:taken:a:{SHIP.id}") <= 10_000


@pytest.mark.parametrize("command", ["FLUSHALL", "SCRIPT FLUSH"])
def test_lost_budget_does_not_prevent_queries(notifiers, redis_server, command):
    assert notifiers[0].take(SHIP, 3, "a") == 3
    with redis_server.admin as admin:
        admin.execute_command(command)
    assert (notifiers[0].take(SHIP, 3, "a") or 0) > 0


def test_invalid_budget_is_unknown_and_logged_once(notifiers, redis_server, caplog):
    key = f"django_jobchains:taken:a:{SHIP.id}"
    with redis_server.admin as admin:
        admin.set(key, "junk")
        assert notifiers[0].take(SHIP, 3, "a") is None
        admin.delete(key)
        admin.lpush(key, "junk")
        assert notifiers[0].take(SHIP, 3, "a") is None
    assert caplog.text.count("every idle worker queries") == 1, "the warning is throttled"


def test_invalid_budget_does_not_open_the_circuit_breaker(notifiers, redis_server):
    """The server responds, although with an error."""
    with redis_server.admin as admin:
        admin.set(f"django_jobchains:taken:a:{SHIP.id}", "junk")
        assert notifiers[0].take(SHIP, 3, "a") is None
        notifiers[0].send([SHIP])


def test_many_subjects_are_sent_as_one_hint(redis_server):
    received = ReceivedHints()
    listener = get_notifier("default").listen(received)
    try:
        until(lambda: received.hints == [*RESYNC_HINTS])
        get_notifier("default").publish([job_scheduled(f"type.{number}") for number in range(1_000)])
        until(lambda: received.hints == [*RESYNC_HINTS, RESYNC_HINTS[0]])
        assert stays(lambda: len(received.hints) == len(RESYNC_HINTS) + 1, 0.2)
    finally:
        listener.close()


def test_close_closes_the_connection(redis_server):
    with redis_server.admin as admin:
        clients = lambda: {client["id"] for client in admin.client_list()}  # noqa: E731
        before = clients()
        notifier = RedisNotifier("default", **PATIENT)
        for _ in range(2):
            notifier.send([job_scheduled("shop.ship")])
            assert len(clients() - before) == 1
            notifier.close()
            until(lambda: clients() <= before)


def test_messages_are_bytes_whatever_the_cache_decodes(redis_server, use_redis, caplog):
    use_redis(redis_server.url, CONNECTION_POOL_KWARGS={"decode_responses": True, "protocol": 3})
    received, notifier = ReceivedHints(), get_notifier("default")
    listener = notifier.listen(received)
    try:
        until(lambda: received.hints == [*RESYNC_HINTS])
        with redis_server.admin as admin:
            for text in (b"::\xff\xfe", b"::shop.ship"):
                admin.publish(notifier.channels["job_scheduled"], text)
        until(received.of_a_type)
        assert received.hints == [*RESYNC_HINTS, job_scheduled("shop.ship")]
        assert not caplog.text
    finally:
        listener.close()


def test_hint_is_sent_over_a_new_connection_after_a_restart(redis_server):
    notifier = get_notifier("default")
    notifier.send([job_scheduled("before")])
    redis_server.kill()
    redis_server.start()
    notifier.send([job_scheduled("after")])


@pytest.mark.parametrize("outage", [RedisServer.stop, RedisServer.kill, RedisServer.freeze])
def test_budget_is_unknown_during_an_outage(redis_server, use_redis, outage):
    use_redis(redis_server.url)
    hint = Hint("job_scheduled", "shop.ship", 5, "aa")
    notifier = get_notifier("default")
    until(lambda: notifier.take(hint, 3, "a") is not None)
    outage(redis_server)
    started = time.monotonic()
    assert [notifier.take(hint, 3, "a") for _ in range(100)] == [None] * 100
    assert time.monotonic() - started < 100 * 0.2 / 2, "most calls did not wait for the timeout of 0.2 seconds"


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


def is_kept(proxy, listener, seconds):
    count = proxy.count
    return stays(lambda: proxy.count == count and listener.is_alive, seconds)
