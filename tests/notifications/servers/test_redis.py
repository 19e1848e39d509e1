"""The Redis notifier: stored budgets, its connections, and outages that only Redis has."""

import time
from dataclasses import replace

import pytest

from django_jobchains.notifications import base, get_notifier, job_scheduled
from django_jobchains.notifications.hints import RESYNC_HINTS
from django_jobchains.notifications.redis import RedisNotifier
from tests.support.servers.redis import RedisServer
from tests.support.waiting import until

SHIP = replace(job_scheduled("shop.ship", 5), id="00000000000000aa")
KEY = f"django_jobchains:taken:a:{SHIP.id}"
#: Options of notifiers whose hints must arrive: on a busy machine, the default timeout might expire.
PATIENT = {"timeout_seconds": 15}

pytestmark = pytest.mark.usefixtures("short_intervals")


@pytest.fixture(autouse=True)
def _redis(redis_server, use_redis):
    use_redis(redis_server.url, PATIENT)


@pytest.fixture
def notifier():
    notifier = RedisNotifier("default", **PATIENT)
    yield notifier
    notifier.close()


@pytest.fixture
def admin(redis_server):
    with redis_server.admin as admin:
        yield admin


def test_budget_expires_soon(notifier, admin):
    notifier.take(SHIP, 3, "a")
    assert [key.decode() for key in admin.scan_iter()] == [KEY]
    assert 0 < admin.pttl(KEY) <= 10_000


@pytest.mark.parametrize("command", ["FLUSHALL", "SCRIPT FLUSH"])
def test_lost_budget_does_not_prevent_queries(notifier, admin, command):
    assert notifier.take(SHIP, 3, "a") == 3
    admin.execute_command(command)
    assert notifier.take(SHIP, 3, "a") > 0


def test_invalid_budget_is_unknown_and_logged_once_but_no_outage(notifier, admin, caplog):
    """The server responds, although with an error, so the circuit breaker stays closed."""
    for fill in (admin.set, admin.lpush):
        admin.delete(KEY)
        fill(KEY, "junk")
        assert notifier.take(SHIP, 3, "a") is None
        notifier.send([SHIP])
    assert caplog.text.count("every idle worker queries") == 1, "the warning is throttled"


@pytest.mark.parametrize("outage", [RedisServer.stop, RedisServer.freeze])
def test_budget_is_unknown_during_an_outage(redis_server, use_redis, outage):
    use_redis(redis_server.url)
    notifier = get_notifier("default")
    until(lambda: notifier.take(SHIP, 3, "a") is not None)
    outage(redis_server)
    started = time.monotonic()
    assert [notifier.take(SHIP, 3, "a") for _ in range(100)] == [None] * 100
    assert time.monotonic() - started < 100 * 0.2 / 2, "most calls did not wait for the timeout of 0.2 seconds"


def test_close_closes_the_connection(admin):
    def clients():
        return {client["id"] for client in admin.client_list()}

    before, notifier = clients(), RedisNotifier("default", **PATIENT)
    for _ in range(2):
        notifier.send([SHIP])
        assert len(clients() - before) == 1
        notifier.close()
        until(lambda: clients() <= before)


def test_messages_are_bytes_whatever_the_cache_decodes(redis_server, use_redis, listen, admin, caplog):
    use_redis(redis_server.url, CONNECTION_POOL_KWARGS={"decode_responses": True, "protocol": 3})
    notifier = get_notifier("default")
    received = listen(notifier)
    received.until_resynced()
    for text in (b"::\xff\xfe", b"::shop.ship"):
        admin.publish(notifier.channels["job_scheduled"], text)
    until(received.of_a_type)
    assert received.hints == [*RESYNC_HINTS, job_scheduled("shop.ship")]
    assert not caplog.text


def test_listener_reconnects_after_more_attempts_than_its_pool_has_connections(
    redis_server, use_redis, listen, caplog, monkeypatch
):
    monkeypatch.setattr(base, "FIRST_RETRY_SECONDS", 0.01)
    use_redis(redis_server.url, PATIENT, CONNECTION_POOL_KWARGS={"max_connections": 2})
    listener = listen(get_notifier("default")).listener
    redis_server.stop()
    until(lambda: caplog.text.count("Listening for wake-ups failed") > 3)
    redis_server.start()
    until(lambda: listener.is_alive)
