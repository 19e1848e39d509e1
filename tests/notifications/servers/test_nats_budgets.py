"""Wake budgets in JetStream, beyond the contract: the bucket, conflicts and outages."""

import asyncio
import threading

import nats
import pytest
from nats.js.api import StorageType
from nats.js.client import JetStreamContext
from nats.js.errors import BucketNotFoundError

from django_jobchains.notifications import Hint
from django_jobchains.notifications.nats import NatsNotifier
from django_jobchains.notifications.nats.budgets import MAX_BYTES, REMEMBERED_SECONDS
from django_jobchains.testing.contracts import ReceivedHints
from tests.support.servers.nats import core_server, nats_server, start_server
from tests.support.waiting import until

__all__ = ("core_server", "nats_server", "start_server")

BUCKET = "django_jobchains_wakes"


@pytest.fixture
def make():
    """Create connected notifiers, like the notifiers of workers. With ``waits``, wait until their buckets are open."""
    made = []

    def make(server, *, waits=True, **options):
        notifier = NatsNotifier("default", servers=server.url, **options)
        made.append((notifier, notifier.listen(ReceivedHints())))
        until(lambda: made[-1][1].is_alive)
        if waits:
            until(lambda: notifier._budgets._opened)
        return notifier

    yield make
    for notifier, listener in made:
        listener.close()
        notifier.close()


@pytest.fixture
def patient(monkeypatch):
    """Wait longer for budgets, because those that arrive late count as unknown. Undo it to test an outage."""
    with monkeypatch.context() as patch:
        patch.setattr("django_jobchains.notifications.nats.thread.TAKE_SECONDS", 15)
        patch.setattr("django_jobchains.notifications.nats.budgets.ANSWER_SECONDS", 15)
        yield patch


_numbers = iter(range(1, 1_000_000))


def hint_of(count):
    return Hint("job_scheduled", "shop.ship", count, f"{next(_numbers):x}")


def on_server(server, work):
    """Call ``work`` with a JetStream context of the server, and return its result."""

    async def run():
        client = await nats.connect(server.url)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())


def test_twenty_simultaneous_requests_share_the_jobs(nats_server, make, monkeypatch):
    """They have enough time for all conflicts. Otherwise some requests return None, and their workers query."""
    monkeypatch.setattr("django_jobchains.notifications.nats.budgets.MAX_TRIES", 100)
    monkeypatch.setattr("django_jobchains.notifications.nats.thread.TAKE_SECONDS", 15)
    notifiers, hint = [make(nats_server), make(nats_server)], hint_of(7)
    shares = []
    barrier = threading.Barrier(20)

    def take(number):
        barrier.wait()
        shares.append(notifiers[number % 2].take(hint, 2, "all"))

    threads = [threading.Thread(target=take, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(share or 0 for share in shares) == 7, shares
    assert None not in shares


@pytest.mark.usefixtures("patient")
def test_first_request_waits_for_the_bucket(start_server, make):
    server = start_server()
    assert [make(server, waits=False).take(hint_of(3), 1, "all") for _ in range(5)] == [1] * 5


def test_budget_is_unknown_after_too_many_conflicts(nats_server, make, monkeypatch):
    notifier = make(nats_server)
    opened = notifier._budgets._opened
    assert opened

    async def write(*arguments):
        await opened._bucket.put(arguments[0], b"1")  # another process always writes first
        return False

    monkeypatch.setattr(opened, "_write", write)
    assert notifier.take(hint_of(7), 1, "all") is None


def test_bucket_is_limited_and_in_memory(nats_server, make):
    make(nats_server)

    async def settings(jetstream):
        return (await jetstream.stream_info(f"KV_{BUCKET}")).config

    config = on_server(nats_server, settings)
    assert (config.max_age, config.max_msgs_per_subject) == (REMEMBERED_SECONDS, 1)
    assert (config.storage, config.max_bytes) == (StorageType.MEMORY, MAX_BYTES)


def test_simultaneous_connections_create_the_bucket(start_server, make):
    server = start_server()
    notifiers = [make(server, waits=False) for _ in range(10)]
    for notifier in notifiers:
        until(lambda notifier=notifier: notifier._budgets._opened)


@pytest.mark.usefixtures("patient")
def test_existing_bucket_is_used(start_server, make):
    server = start_server()

    async def create(jetstream):
        await jetstream.create_key_value(bucket=BUCKET, history=5, storage=StorageType.FILE, direct=True)

    on_server(server, create)
    notifier, hint = make(server), hint_of(3)
    assert [notifier.take(hint, 2, "all") for _ in range(3)] == [2, 1, 0]


@pytest.mark.usefixtures("patient")
def test_bucket_created_concurrently_is_used(start_server, make, monkeypatch):
    server, find = start_server(), JetStreamContext.key_value

    async def create(jetstream, name=BUCKET):
        """Create the bucket right before the notifier finds that it does not exist."""
        monkeypatch.setattr(JetStreamContext, "key_value", find)
        await jetstream.create_key_value(bucket=name, history=5, storage=StorageType.FILE)
        raise BucketNotFoundError

    monkeypatch.setattr(JetStreamContext, "key_value", create)
    assert make(server).take(hint_of(3), 1, "all") == 1


@pytest.mark.usefixtures("patient")
def test_budget_is_unknown_if_the_bucket_contains_junk(nats_server, make):
    notifier, hint = make(nats_server), hint_of(3)
    assert notifier.take(hint, 1, "all") == 1

    async def overwrite(jetstream):
        bucket = await jetstream.key_value(BUCKET)
        for key in await bucket.keys():
            await bucket.put(key, b"junk")

    on_server(nats_server, overwrite)
    assert notifier.take(hint, 1, "all") is None


def test_deleted_bucket_is_created_again(start_server, make, monkeypatch):
    monkeypatch.setattr("django_jobchains.notifications.nats.budgets.RETRY_SECONDS", 0.1)
    server = start_server()
    notifier = make(server)
    on_server(server, lambda jetstream: jetstream.delete_key_value(BUCKET))
    assert notifier.take(hint_of(3), 1, "all") is None
    until(lambda: notifier.take(hint_of(3), 1, "all") == 1)


def test_budget_is_unknown_during_an_outage(start_server, make, patient):
    server = start_server()
    notifier, hint = make(server), hint_of(1)
    assert notifier.take(hint, 1, "all") == 1
    assert notifier.take(hint, 1, "all") == 0
    patient.undo()
    server.kill()
    assert notifier.take(hint, 1, "all") is None
    server.start()
    until(lambda: notifier._budgets._opened)
    assert notifier.take(hint, 1, "all") in (1, None)


def test_request_to_a_frozen_server_times_out(start_server, make, monkeypatch):
    monkeypatch.setattr("django_jobchains.notifications.nats.budgets.ANSWER_SECONDS", 60)
    monkeypatch.setattr("django_jobchains.notifications.nats.thread.ANSWER_SECONDS", 60)
    server = start_server()
    notifier = make(server)
    server.freeze()
    request = threading.Thread(target=lambda: notifier.take(hint_of(3), 1, "all"))
    request.start()
    request.join(15)
    try:
        assert not request.is_alive()
    finally:
        server.thaw()
        request.join()
    until(lambda: notifier.take(hint_of(3), 1, "all") == 1)


@pytest.mark.parametrize(("budgets", "level"), [(None, "INFO"), (True, "WARNING")])
def test_missing_jetstream_is_logged_once_and_budgets_are_unknown(core_server, make, caplog, budgets, level):
    caplog.set_level("INFO")
    notifier = make(core_server, waits=False, budgets=budgets)
    until(lambda: "no wake budgets" in caplog.text)
    assert [record.levelname for record in caplog.records] == [level]
    assert notifier.take(hint_of(3), 1, "all") is None


def test_jetstream_is_not_used_without_budgets(start_server, make):
    server = start_server()
    notifier = make(server, waits=False, budgets=False)
    assert notifier.take(hint_of(3), 1, "all") is None

    async def streams(jetstream):
        return await jetstream.streams_info()

    assert on_server(server, streams) == []
