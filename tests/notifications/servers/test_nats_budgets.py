"""Wake budgets in JetStream, beyond the contract: the bucket, conflicts and outages."""

import asyncio
import itertools
import threading

import nats
import pytest
from nats.js.api import StorageType
from nats.js.client import JetStreamContext
from nats.js.errors import BucketNotFoundError

from django_jobchains.notifications import Hint
from django_jobchains.notifications.nats import NatsNotifier, budgets, thread
from django_jobchains.notifications.nats.budgets import MAX_BYTES, REMEMBERED_SECONDS
from tests.support.waiting import until

BUCKET = "django_jobchains_wakes"
_numbers = itertools.count(1)


@pytest.fixture
def make(listen):
    """Create connected notifiers, like the notifiers of workers. With ``waits``, wait until their buckets are open."""
    made = []

    def make(server, *, waits=True, **options):
        notifier = NatsNotifier("default", servers=server.url, **options)
        made.append(notifier)
        listen(notifier)
        if waits:
            until(lambda: notifier._budgets._opened)
        return notifier

    yield make
    for notifier in made:
        notifier.close()


def hint_of(count):
    return Hint("job_scheduled", "shop.ship", count, f"{next(_numbers):x}")


def take(notifier, count=3):
    return notifier.take(hint_of(count), 1, "all")


def on_server(server, work):
    """Call ``work`` with a JetStream context of the server, and return its result."""

    async def run():
        client = await nats.connect(server.url)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())


def test_budget_is_unknown_after_too_many_conflicts(nats_server, make, monkeypatch):
    notifier = make(nats_server)
    opened = notifier._budgets._opened

    async def write(*arguments):
        await opened._bucket.put(arguments[0], b"1")  # another process always writes first
        return False

    monkeypatch.setattr(opened, "_write", write)
    assert take(notifier) is None


def test_bucket_is_limited_and_in_memory(nats_server, make):
    make(nats_server)
    config = on_server(nats_server, lambda jetstream: jetstream.stream_info(f"KV_{BUCKET}")).config
    assert (config.max_age, config.max_msgs_per_subject) == (REMEMBERED_SECONDS, 1)
    assert (config.storage, config.max_bytes) == (StorageType.MEMORY, MAX_BYTES)


@pytest.mark.usefixtures("patient")
def test_simultaneous_connections_create_the_bucket_and_first_requests_wait_for_it(start_server, make):
    server = start_server()
    assert [take(make(server, waits=False)) for _ in range(10)] == [1] * 10


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("is_created_before", [True, False])
def test_bucket_of_another_process_is_used(start_server, make, monkeypatch, is_created_before):
    server, find = start_server(), JetStreamContext.key_value

    async def create(jetstream, name=BUCKET):
        """Create the bucket right before the notifier finds that it does not exist."""
        monkeypatch.setattr(JetStreamContext, "key_value", find)
        await jetstream.create_key_value(bucket=name, history=5, storage=StorageType.FILE, direct=True)
        raise BucketNotFoundError

    if is_created_before:
        with pytest.raises(BucketNotFoundError):
            on_server(server, create)
    else:
        monkeypatch.setattr(JetStreamContext, "key_value", create)
    notifier, hint = make(server), hint_of(3)
    assert [notifier.take(hint, 2, "all") for _ in range(3)] == [2, 1, 0]


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
    monkeypatch.setattr(budgets, "RETRY_SECONDS", 0.1)
    server = start_server()
    notifier = make(server)
    on_server(server, lambda jetstream: jetstream.delete_key_value(BUCKET))
    assert take(notifier) is None
    until(lambda: take(notifier) == 1)


def test_budget_is_unknown_during_an_outage(start_server, make, patient):
    server = start_server()
    notifier = make(server)
    assert take(notifier) == 1
    patient.undo()
    server.kill()
    assert take(notifier) is None
    server.start()
    until(lambda: take(notifier) == 1)


def test_request_to_a_frozen_server_times_out(start_server, make, monkeypatch):
    for module in (budgets, thread):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 60)
    server = start_server()
    notifier = make(server)
    server.freeze()
    request = threading.Thread(target=take, args=(notifier,))
    request.start()
    request.join(15)
    try:
        assert not request.is_alive()
    finally:
        server.thaw()
        request.join()
    until(lambda: take(notifier) == 1)


@pytest.mark.parametrize(("wanted", "level"), [(None, "INFO"), (True, "WARNING")])
def test_missing_jetstream_is_logged_once_and_budgets_are_unknown(core_server, make, caplog, wanted, level):
    caplog.set_level("INFO")
    notifier = make(core_server, waits=False, budgets=wanted)
    until(lambda: "no wake budgets" in caplog.text)
    assert [record.levelname for record in caplog.records] == [level]
    assert take(notifier) is None


def test_jetstream_is_not_used_without_budgets(start_server, make):
    server = start_server()
    assert take(make(server, waits=False, budgets=False)) is None
    assert on_server(server, lambda jetstream: jetstream.streams_info()) == []
