"""Redis: the contract, wake budgets, and what is on its channels."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from django_jobchains.notifications import Hint, Notifier, get_notifier, job_scheduled, redis
from django_jobchains.notifications.hints import LOOK
from django_jobchains.notifications.redis import RedisNotifier
from tests.notifications.contract import Heard, NotifierContract
from tests.notifications.redis.server import RedisServer
from tests.waiting.forking import Child
from tests.worker.waiting import stays, until

UseRedis = Callable[..., None]
SHIP = replace(job_scheduled("shop.ship", 5), id="00000000000000aa")


@pytest.fixture(autouse=True)
def _redis(redis_server: RedisServer, use_redis: UseRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redis, "TICK_SECONDS", 0.05)
    use_redis(redis_server.url)


class TestRedis(NotifierContract):
    def make(self) -> Notifier:
        return RedisNotifier("default", timeout_seconds=2)  # the machine of a test may be busy


@pytest.fixture
def notifiers() -> Iterator[tuple[RedisNotifier, RedisNotifier]]:
    """As of two processes."""
    pair = RedisNotifier("default"), RedisNotifier("default")
    yield pair
    for notifier in pair:
        notifier.close()


Pair = tuple[RedisNotifier, RedisNotifier]


def test_hints_of_two_databases_have_channels_of_their_own() -> None:
    """The alias is all that the notifier is told of a database."""
    default, other = RedisNotifier("default", timeout_seconds=2), RedisNotifier("other", timeout_seconds=2)
    heard = Heard()
    listener = other.listen(heard)
    try:
        until(lambda: set(LOOK) <= set(heard.hints))
        default.publish([job_scheduled("of.default")])
        other.publish([job_scheduled("of.other")])
        until(lambda: job_scheduled("of.other") in heard.hints)
        assert job_scheduled("of.default") not in heard.hints
    finally:
        listener.close()
        default.close()
        other.close()


def test_those_who_hear_a_hint_together_take_its_count(notifiers: Pair) -> None:
    first, second = notifiers
    assert [first.take(SHIP, 3, "a"), second.take(SHIP, 3, "a"), first.take(SHIP, 3, "a")] == [3, 2, 0]
    assert second.take(SHIP, 9, "b") == 5, "another group could not run what the first one takes"
    assert first.take(replace(SHIP, id="bb"), 1, "a") == 1
    assert first.take(SHIP, 0, "c") == 0


def test_threads_that_ask_at_once_never_take_more(notifiers: Pair) -> None:
    hint, taken = replace(SHIP, count=100), []

    def ask(notifier: RedisNotifier) -> None:
        taken.extend(notifier.take(hint, 3, "a") for _ in range(20))

    threads = [threading.Thread(target=ask, args=[notifiers[number % 2]]) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 100


@pytest.mark.parametrize("hint", [job_scheduled("shop.ship"), replace(SHIP, count=None), replace(SHIP, id="")])
def test_the_share_of_an_unknown_count_is_not_known(notifiers: Pair, hint: Hint) -> None:
    assert notifiers[0].take(hint, 1, "a") is None


def test_a_budget_is_forgotten_soon(notifiers: Pair, redis_server: RedisServer) -> None:
    notifiers[0].take(SHIP, 3, "a")
    with redis_server.admin as admin:
        assert [key.decode() for key in admin.scan_iter()] == [f"django_jobchains:taken:a:{SHIP.id}"]
        assert 0 < admin.pttl(f"django_jobchains:taken:a:{SHIP.id}") <= 10_000


@pytest.mark.parametrize("command", ["FLUSHALL", "SCRIPT FLUSH"])
def test_what_redis_lost_is_no_reason_not_to_look(notifiers: Pair, redis_server: RedisServer, command: str) -> None:
    assert notifiers[0].take(SHIP, 3, "a") == 3
    with redis_server.admin as admin:
        admin.execute_command(command)
    assert (notifiers[0].take(SHIP, 3, "a") or 0) > 0


def test_a_counter_that_is_none_is_no_reason_not_to_look(
    notifiers: Pair, redis_server: RedisServer, caplog: Any
) -> None:
    key = f"django_jobchains:taken:a:{SHIP.id}"
    with redis_server.admin as admin:
        admin.set(key, "junk")
        assert notifiers[0].take(SHIP, 3, "a") is None
        admin.delete(key)
        admin.lpush(key, "junk")
        assert notifiers[0].take(SHIP, 3, "a") is None
    assert caplog.text.count("every idle worker looks") == 1, "once in a while is enough"


def test_what_is_taken_is_no_error_of_sending(notifiers: Pair, redis_server: RedisServer) -> None:
    """An answer that is an error says that the server is there."""
    with redis_server.admin as admin:
        admin.set(f"django_jobchains:taken:a:{SHIP.id}", "junk")
        assert notifiers[0].take(SHIP, 3, "a") is None
        notifiers[0].send([SHIP])


def test_a_listener_subscribes_to_what_is_wanted_alone(redis_server: RedisServer) -> None:
    notifier, heard, lost = RedisNotifier("default"), Heard(), Heard()
    with redis_server.admin as admin:
        channels = lambda: sorted(name.decode().partition(".")[2] for name in admin.pubsub_channels())  # noqa: E731
        first = notifier.listen(heard, {"job_scheduled"})
        until(lambda: first.is_alive)
        assert channels() == ["job_scheduled"]
        second = notifier.listen(lost, {"ownership_lost"})
        until(lambda: lost.hints == [LOOK[2]])
        assert channels() == ["job_scheduled", "ownership_lost"]
        assert heard.hints == [LOOK[0]]
        first.close()
        until(lambda: channels() == ["ownership_lost"])
        third = notifier.listen(heard, {"job_scheduled"})
        until(lambda: heard.hints == [LOOK[0]] * 2)
        assert channels() == ["job_scheduled", "ownership_lost"]
        second.close()
        third.close()
        until(lambda: not channels())


def test_another_prefix_is_another_project(use_redis: UseRedis, redis_server: RedisServer) -> None:
    heard, notifier = Heard(), RedisNotifier("default", prefix="shop")
    listener = notifier.listen(heard)
    try:
        until(lambda: listener.is_alive)
        RedisNotifier("default").send([job_scheduled("other.project")])
        RedisNotifier("default", prefix="shop").send([job_scheduled("shop.ship")])
        until(lambda: heard.of_a_type())
        assert heard.of_a_type() == [job_scheduled("shop.ship")]
        assert notifier.take(SHIP, 5, "a") == RedisNotifier("default").take(SHIP, 5, "a") == 5
    finally:
        listener.close()


def test_many_subjects_are_sent_as_one_hint(redis_server: RedisServer) -> None:
    heard = Heard()
    listener = get_notifier("default").listen(heard)
    try:
        until(lambda: heard.hints == [*LOOK])
        get_notifier("default").publish([job_scheduled(f"type.{number}") for number in range(1_000)])
        until(lambda: heard.hints == [*LOOK, LOOK[0]])
        assert stays(lambda: len(heard.hints) == len(LOOK) + 1, 0.2)
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
def test_junk_is_ignored(redis_server: RedisServer, use_redis: UseRedis, options: dict[str, Any], caplog: Any) -> None:
    use_redis(redis_server.url, **options)
    heard, notifier = Heard(), RedisNotifier("default")
    listener = notifier.listen(heard)
    try:
        until(lambda: heard.hints == [*LOOK])
        with redis_server.admin as admin:
            for text in JUNK:
                for channel in notifier.channels.values():
                    admin.publish(channel, text)
            admin.publish(notifier.channels["job_scheduled"], "::shop.ship")
        until(lambda: heard.of_a_type())
        assert heard.hints == [*LOOK, job_scheduled("shop.ship")]
        assert not caplog.text
    finally:
        listener.close()


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(redis_server: RedisServer) -> None:
    heard, notifier = Heard(), get_notifier("default")
    listener = notifier.listen(heard)
    try:
        until(lambda: listener.is_alive)
        notifier.send([job_scheduled("before")])
        until(lambda: job_scheduled("before") in heard.hints)

        def publish() -> int:
            assert get_notifier("default") is not notifier
            get_notifier("default").send([job_scheduled("child")])
            notifier.send([job_scheduled("by.the.old.one")])
            notifier.close()
            return get_notifier("default").take(SHIP, 2, "a") or 0

        child = Child([publish])
        assert child.answer() == 2
        child.end()
        until(lambda: {job_scheduled("child"), job_scheduled("by.the.old.one")} <= set(heard.hints))
        notifier.send([job_scheduled("after")])
        until(lambda: job_scheduled("after") in heard.hints)
        assert heard.hints[: len(LOOK)] == [*LOOK]
        assert LOOK[0] not in heard.hints[len(LOOK) :], "the listener was not disturbed"
        assert notifier.take(SHIP, 9, "a") == 3
    finally:
        listener.close()


def test_a_closed_notifier_may_be_used_again(redis_server: RedisServer) -> None:
    with redis_server.admin as admin:
        clients = lambda: {client["id"] for client in admin.client_list()}  # noqa: E731
        before = clients()
        notifier = RedisNotifier("default")
        for _ in range(2):
            notifier.send([job_scheduled("shop.ship")])
            assert len(clients() - before) == 1
            notifier.close()
            until(lambda: clients() <= before)
