"""The Redis notifier: the contract, stored budgets, subscriptions and forked processes."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from django_jobchains.notifications import Notifier, base, get_notifier, job_scheduled, redis
from django_jobchains.notifications.hints import RESYNC_HINTS
from django_jobchains.notifications.redis import RedisNotifier
from django_jobchains.testing.contracts import NotifierContract, ReceivedHints
from tests.support.forks import Child
from tests.support.waiting import stays, until

SHIP = replace(job_scheduled("shop.ship", 5), id="00000000000000aa")
#: Options of notifiers whose hints must arrive: on a busy machine, the default timeout might expire.
PATIENT: dict[str, Any] = {"timeout_seconds": 15}


@pytest.fixture(autouse=True)
def _redis(redis_server, use_redis, monkeypatch):
    monkeypatch.setattr(redis, "TICK_SECONDS", 0.05)
    use_redis(redis_server.url, PATIENT)


class TestRedis(NotifierContract):
    has_budgets = True

    @pytest.fixture(autouse=True)
    def _server(self, redis_server, monkeypatch):
        monkeypatch.setattr(base, "MAX_RETRY_SECONDS", 0.4)
        self.server = redis_server

    def make(self) -> Notifier:
        return RedisNotifier("default", **PATIENT)

    @contextmanager
    def interrupt(self) -> Iterator[None]:
        self.server.kill()
        yield
        self.server.start()


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


def test_listener_subscribes_only_to_the_requested_kinds(redis_server):
    notifier, received, lost = RedisNotifier("default"), ReceivedHints(), ReceivedHints()
    with redis_server.admin as admin:
        channels = lambda: sorted(name.decode().partition(".")[2] for name in admin.pubsub_channels())  # noqa: E731
        first = notifier.listen(received, {"job_scheduled"})
        until(lambda: first.is_alive)
        assert channels() == ["job_scheduled"]
        second = notifier.listen(lost, {"ownership_lost"})
        until(lambda: lost.hints == [RESYNC_HINTS[2]])
        assert channels() == ["job_scheduled", "ownership_lost"]
        assert received.hints == [RESYNC_HINTS[0]]
        first.close()
        until(lambda: channels() == ["ownership_lost"])
        third = notifier.listen(received, {"job_scheduled"})
        until(lambda: received.hints == [RESYNC_HINTS[0]] * 2)
        assert channels() == ["job_scheduled", "ownership_lost"]
        second.close()
        third.close()
        until(lambda: not channels())


@pytest.mark.parametrize(("using", "prefix"), [("other", None), ("default", "shop")], ids=["database", "prefix"])
def test_channels_depend_on_database_and_prefix(using, prefix):
    options = {**PATIENT, **({"prefix": prefix} if prefix else {})}
    received, own, other = (
        ReceivedHints(),
        RedisNotifier(using, **options),
        RedisNotifier("default", **PATIENT),
    )
    listener = own.listen(received)
    try:
        until(lambda: received.hints == [*RESYNC_HINTS])
        other.publish([job_scheduled("other.project")])
        own.publish([job_scheduled("shop.ship")])
        until(received.of_a_type)
        assert received.of_a_type() == [job_scheduled("shop.ship")]
        assert own.take(SHIP, 5, "a") == other.take(SHIP, 5, "a") == 5
    finally:
        listener.close()
        own.close()
        other.close()


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


JUNK = [
    b"",
    b"*",
    b":",
    b"1:2",
    b"x::a",
    b"-1::a",
    b"{}",
    b"9" * 7_000,
    b"1:xyz:a",
    b"::\n",
    b"::\xff\xfe",
    b"::" + b"x" * 201,
]


@pytest.mark.parametrize("options", [{}, {"CONNECTION_POOL_KWARGS": {"decode_responses": True, "protocol": 3}}])
def test_junk_is_ignored(redis_server, use_redis, options, caplog):
    use_redis(redis_server.url, **options)
    received, notifier = ReceivedHints(), RedisNotifier("default")
    listener = notifier.listen(received)
    try:
        until(lambda: received.hints == [*RESYNC_HINTS])
        with redis_server.admin as admin:
            for text in JUNK:
                for channel in notifier.channels.values():
                    admin.publish(channel, text)
            admin.publish(notifier.channels["job_scheduled"], "::shop.ship")
        until(lambda: received.of_a_type())
        assert received.hints == [*RESYNC_HINTS, job_scheduled("shop.ship")]
        assert not caplog.text
    finally:
        listener.close()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_forked_child_has_its_own_connections(redis_server):
    received, notifier = ReceivedHints(), get_notifier("default")
    listener = notifier.listen(received)
    try:
        until(lambda: listener.is_alive)
        notifier.send([job_scheduled("before")])
        until(lambda: job_scheduled("before") in received.hints)

        def publish() -> int:
            assert get_notifier("default") is not notifier
            get_notifier("default").send([job_scheduled("child")])
            notifier.send([job_scheduled("by.the.old.one")])
            notifier.close()
            return get_notifier("default").take(SHIP, 2, "a") or 0

        child = Child([publish])
        assert child.answer() == 2
        child.end()
        until(lambda: {job_scheduled("child"), job_scheduled("by.the.old.one")} <= set(received.hints))
        notifier.send([job_scheduled("after")])
        until(lambda: job_scheduled("after") in received.hints)
        assert received.hints[: len(RESYNC_HINTS)] == [*RESYNC_HINTS]
        assert RESYNC_HINTS[0] not in received.hints[len(RESYNC_HINTS) :], "the listener did not reconnect"
        assert notifier.take(SHIP, 9, "a") == 3
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
