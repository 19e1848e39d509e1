"""Wake budgets in JetStream: all who ask for one hint together get its jobs, or do not know."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import nats
import pytest
from nats.js.api import StorageType
from nats.js.client import JetStreamContext
from nats.js.errors import BucketNotFoundError

from django_jobchains.notifications import Hint, chain_finished, job_scheduled
from django_jobchains.notifications.hints import EVERY
from django_jobchains.notifications.nats import NatsNotifier
from django_jobchains.notifications.nats_budgets import MOST_BYTES, REMEMBERED_SECONDS
from tests.notifications.contract import Heard
from tests.notifications.nats.server import NatsServer, StartServer, core_server, nats_server, start_server
from tests.worker.waiting import until

__all__ = ("core_server", "nats_server", "start_server")

BUCKET = "django_jobchains_wakes"

Make = Callable[..., NatsNotifier]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes notifiers that are connected, as those of workers are."""
    made: list[tuple[NatsNotifier, Any]] = []

    def make(server: NatsServer, *, waits: bool = True, **options: Any) -> NatsNotifier:
        notifier = NatsNotifier("default", servers=server.url, **options)
        made.append((notifier, notifier.listen(Heard())))
        until(lambda: made[-1][1].is_alive)
        if waits:
            until(lambda: notifier._connection.budgets._opened)
        return notifier

    yield make
    for notifier, listener in made:
        listener.close()
        notifier.close()


_numbers = iter(range(1, 1_000_000))


def hint_of(count: int | None) -> Hint:
    return Hint("job_scheduled", "shop.ship", count, f"{next(_numbers):x}")


def on_server(server: NatsServer, work: Callable[[Any], Any]) -> Any:
    """What the work, which is given JetStream, returns."""

    async def run() -> Any:
        client = await nats.connect(server.url)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())


def test_two_processes_share_a_hints_jobs(nats_server: NatsServer, make: Make) -> None:
    first, second, hint = make(nats_server), make(nats_server), hint_of(7)
    assert first.take(hint, 3, "all") == 3
    assert second.take(hint, 3, "all") == 3
    assert first.take(hint, 3, "all") == 1
    assert second.take(hint, 3, "all") == first.take(hint, 3, "all") == 0


def test_each_group_has_a_budget_of_its_own(nats_server: NatsServer, make: Make) -> None:
    notifier, hint = make(nats_server), hint_of(1)
    groups = ["mail", "ship", "ünïcode * > . ", "x" * 500]
    assert [notifier.take(hint, 5, group) for group in groups] == [1, 1, 1, 1]
    assert [notifier.take(hint, 5, group) for group in groups] == [0, 0, 0, 0]


def test_each_hint_has_a_budget_of_its_own(nats_server: NatsServer, make: Make) -> None:
    notifier = make(nats_server)
    assert [notifier.take(hint_of(2), 5, "all") for _ in range(3)] == [2, 2, 2]


@pytest.mark.parametrize(
    "hint", [hint_of(None), job_scheduled(EVERY), job_scheduled("a.b", 3), chain_finished(EVERY)], ids=str
)
def test_a_hint_without_a_count_or_an_id_has_none(nats_server: NatsServer, make: Make, hint: Hint) -> None:
    assert make(nats_server).take(hint, 3, "all") is None


@pytest.mark.parametrize("most", [1, 2])
def test_twenty_who_ask_at_once_get_no_more_and_no_less(
    nats_server: NatsServer, make: Make, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Given time enough; else some of them do not know, and look."""
    monkeypatch.setattr("django_jobchains.notifications.nats_budgets.TRIES", 100)
    monkeypatch.setattr("django_jobchains.notifications.nats_thread.TAKE_SECONDS", 15)
    notifiers, hint = [make(nats_server), make(nats_server)], hint_of(7)
    shares: list[int | None] = []
    barrier = threading.Barrier(20)

    def take(number: int) -> None:
        barrier.wait()
        shares.append(notifiers[number % 2].take(hint, most, "all"))

    threads = [threading.Thread(target=take, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(share or 0 for share in shares) == 7, shares
    assert None not in shares


def test_whoever_asks_before_the_bucket_is_open_waits_for_it(start_server: StartServer, make: Make) -> None:
    server = start_server()
    assert [make(server, waits=False).take(hint_of(3), 1, "all") for _ in range(5)] == [1] * 5


def test_conflicts_without_end_are_not_known(
    nats_server: NatsServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier = make(nats_server)
    opened = notifier._connection.budgets._opened
    assert opened

    async def write(*arguments: Any) -> bool:
        await opened._bucket.put(arguments[0], b"1")  # somebody else is always faster
        return False

    monkeypatch.setattr(opened, "_write", write)
    assert notifier.take(hint_of(7), 1, "all") is None


def test_the_bucket_is_small_short_lived_and_in_memory(nats_server: NatsServer, make: Make) -> None:
    make(nats_server)

    async def settings(jetstream: Any) -> Any:
        return (await jetstream.stream_info(f"KV_{BUCKET}")).config

    config = on_server(nats_server, settings)
    assert (config.max_age, config.max_msgs_per_subject) == (REMEMBERED_SECONDS, 1)
    assert (config.storage, config.max_bytes) == (StorageType.MEMORY, MOST_BYTES)


def test_the_first_to_connect_makes_the_bucket_and_so_may_ten_at_once(start_server: StartServer, make: Make) -> None:
    server = start_server()
    notifiers = [make(server, waits=False) for _ in range(10)]
    for notifier in notifiers:
        until(lambda notifier=notifier: notifier._connection.budgets._opened)  # type: ignore[misc]


def test_a_bucket_with_settings_of_its_own_is_used(start_server: StartServer, make: Make) -> None:
    server = start_server()

    async def create(jetstream: Any) -> None:
        await jetstream.create_key_value(bucket=BUCKET, history=5, storage=StorageType.FILE, direct=True)

    on_server(server, create)
    notifier, hint = make(server), hint_of(3)
    assert [notifier.take(hint, 2, "all") for _ in range(3)] == [2, 1, 0]


def test_a_bucket_that_another_process_makes_meanwhile_is_used(
    start_server: StartServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, find = start_server(), JetStreamContext.key_value

    async def create(jetstream: Any, name: str = BUCKET) -> Any:
        """Between the question whether there is one and the wish to have one."""
        monkeypatch.setattr(JetStreamContext, "key_value", find)
        await jetstream.create_key_value(bucket=name, history=5, storage=StorageType.FILE)
        raise BucketNotFoundError

    monkeypatch.setattr(JetStreamContext, "key_value", create)
    assert make(server).take(hint_of(3), 1, "all") == 1


def test_junk_in_the_bucket_is_not_known(nats_server: NatsServer, make: Make) -> None:
    notifier, hint = make(nats_server), hint_of(3)
    assert notifier.take(hint, 1, "all") == 1

    async def overwrite(jetstream: Any) -> None:
        bucket = await jetstream.key_value(BUCKET)
        for key in await bucket.keys():
            await bucket.put(key, b"junk")

    on_server(nats_server, overwrite)
    assert notifier.take(hint, 1, "all") is None


def test_a_bucket_that_was_deleted_is_made_again(
    start_server: StartServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_jobchains.notifications.nats_budgets.AGAIN_SECONDS", 0.1)
    server = start_server()
    notifier = make(server)
    on_server(server, lambda jetstream: jetstream.delete_key_value(BUCKET))
    assert notifier.take(hint_of(3), 1, "all") is None
    until(lambda: notifier.take(hint_of(3), 1, "all") == 1)


def test_a_server_that_lost_the_bucket_lets_workers_look(start_server: StartServer, make: Make) -> None:
    server = start_server()
    notifier, hint = make(server), hint_of(1)
    assert notifier.take(hint, 1, "all") == 1
    assert notifier.take(hint, 1, "all") == 0
    server.kill()
    assert notifier.take(hint, 1, "all") is None
    server.start()
    until(lambda: notifier._connection.budgets._opened)
    assert notifier.take(hint, 1, "all") in (1, None)


def test_a_server_that_does_not_answer_costs_a_fifth_of_a_second(
    start_server: StartServer, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_jobchains.notifications.nats_budgets.ANSWER_SECONDS", 60)
    monkeypatch.setattr("django_jobchains.notifications.nats_thread.ANSWER_SECONDS", 60)
    server = start_server()
    notifier = make(server)
    server.pause()
    asked = threading.Thread(target=lambda: notifier.take(hint_of(3), 1, "all"))
    asked.start()
    asked.join(5)
    try:
        assert not asked.is_alive()
    finally:
        server.resume()
        asked.join()
    until(lambda: notifier.take(hint_of(3), 1, "all") == 1)


@pytest.mark.parametrize(("budgets", "level"), [(None, "INFO"), (True, "WARNING")])
def test_without_jetstream_it_is_said_once_a_connection_and_nobody_knows(
    core_server: NatsServer, make: Make, caplog: Any, budgets: bool | None, level: str
) -> None:
    caplog.set_level("INFO")
    notifier = make(core_server, waits=False, budgets=budgets)
    until(lambda: "no wake budgets" in caplog.text)
    assert [record.levelname for record in caplog.records] == [level]
    assert notifier.take(hint_of(3), 1, "all") is None


def test_without_budgets_jetstream_is_left_alone(start_server: StartServer, make: Make) -> None:
    server = start_server()
    notifier = make(server, waits=False, budgets=False)
    assert notifier.take(hint_of(3), 1, "all") is None

    async def streams(jetstream: Any) -> Any:
        return await jetstream.streams_info()

    assert on_server(server, streams) == []
