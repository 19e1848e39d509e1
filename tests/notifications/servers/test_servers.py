"""What Redis and NATS have in common: subscriptions, junk, floods, forks, outages and secrets."""

import random
import threading
import time
from contextlib import contextmanager
from uuid import uuid4

import pytest

from django_jobchains.models import Job
from django_jobchains.notifications import KINDS, Hint, get_notifier, job_scheduled, ownership_lost
from django_jobchains.notifications.hints import EVERY, RESYNC_HINTS, encode
from tests.shop.models import Effect
from tests.support.forks import Child
from tests.support.invariants import assert_invariants
from tests.support.waiting import stays, until, until_completed
from tests.support.worker_app import jobs

pytestmark = pytest.mark.django_db(transaction=True)

SHIP, MAIL = job_scheduled("shop.ship"), job_scheduled("mail.send")
#: The longest time that a job waits without hints, and what a busy machine adds to it.
POLL_SECONDS, MARGIN_SECONDS = 2.0, 10.0
JUNK = [
    b"", b"*", b":", b"junk", b"1:2", b"x:y:z", b"-1::a", b"NaN::a", b"{}", b"9" * 7_000, b"1:xyz:a", b"1:abc:\n",
    b"::\xff\xfe", b"::" + b"x" * 201, b"1:abc:" + b"x" * 900_000,
]  # fmt: skip


def test_the_server_gets_subscriptions_for_the_requested_kinds_only(broker, listen):
    notifier = get_notifier("default")
    first = listen(notifier, {"job_scheduled"})
    assert broker.subscribed(notifier) == {"job_scheduled"}
    second = listen(notifier, {"ownership_lost"})
    until(lambda: second.hints == [ownership_lost(EVERY)])
    assert broker.subscribed(notifier) == {"job_scheduled", "ownership_lost"}
    assert first.hints == [job_scheduled(EVERY)]
    first.listener.close()
    until(lambda: broker.subscribed(notifier) == {"ownership_lost"})
    second.listener.close()
    until(lambda: not broker.subscribed(notifier))


@pytest.mark.parametrize("separate", [{"using": "other"}, {"prefix": "their-shop"}], ids=["database", "prefix"])
def test_channels_depend_on_database_and_prefix(broker, listen, separate):
    own, other = broker.make(**separate), broker.make()
    received = listen(own)
    received.until_resynced()
    other.publish([SHIP])
    other.close()  # closing sends the hint
    own.publish([MAIL])
    until(received.of_a_type)
    assert received.of_a_type() == [MAIL]
    own.close()


def test_junk_is_ignored(broker, listen, caplog):
    received = listen(get_notifier("default"))
    received.until_resynced()
    for kind in sorted(KINDS):
        broker.publish(kind, *JUNK)
    broker.publish("nothing", b"1:abc:a")
    broker.publish("job_scheduled", encode(SHIP).encode())
    until(received.of_a_type)
    assert received.hints == [*RESYNC_HINTS, SHIP]
    assert not caplog.text


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_forked_child_has_its_own_connection(broker, listen):
    notifier = get_notifier("default")
    received = listen(notifier)
    published = {job_scheduled("child"), job_scheduled("by.the.old.one")}

    def publish():
        new = get_notifier("default")
        assert new is not notifier
        assert not received.listener.is_alive
        own = listen(new)
        notifier.publish([job_scheduled("by.the.old.one")])
        new.publish([job_scheduled("child")])
        until(lambda: published <= set(own.hints))
        own.listener.close()
        notifier.close()
        new.close()
        return True

    child = Child([publish])
    assert child.answer() is True
    child.end()
    until(lambda: published <= set(received.hints))
    notifier.publish([SHIP])
    until(lambda: SHIP in received.hints)
    assert received.hints.count(job_scheduled(EVERY)) == 1, "the listener did not reconnect"


@pytest.mark.parametrize("outage", ["stop", "freeze"])
@pytest.mark.parametrize("was_connected", [True, False])
def test_enqueueing_does_not_wait_for_an_unreachable_server(broker, outage, was_connected):
    if was_connected:
        jobs.nothing.enqueue()
    getattr(broker.server, outage)()
    started = time.monotonic()
    for _ in range(300):
        jobs.nothing.enqueue()
    assert Job.objects.count() == 300 + was_connected
    assert time.monotonic() - started < 300 * 0.2 / 2, "most calls did not wait for the timeout of 0.2 seconds"


@pytest.mark.usefixtures("quick_probes")
def test_listener_is_kept_while_idle_and_notices_a_frozen_server_and_its_return(broker, listen):
    before = set(threading.enumerate())
    notifier = get_notifier("default")
    received = listen(notifier)
    listener = received.listener

    def is_kept():
        count = len(received.hints)
        return stays(lambda: len(received.hints) == count and listener.is_alive, 1)

    until(is_kept)  # on a busy machine, a response may be late, and then the connection is replaced
    broker.server.freeze()
    until(lambda: not listener.is_alive)
    received.hints.clear()
    broker.server.thaw()
    until(lambda: listener.is_alive and set(received.hints) == set(RESYNC_HINTS))
    until(lambda: notifier.publish([job_scheduled(uuid4().hex)]) or received.of_a_type())
    broker.server.freeze()
    until(lambda: not listener.is_alive)
    listener.close()
    notifier.close()
    until(lambda: set(threading.enumerate()) <= before)
    broker.server.thaw()


def test_passwords_are_not_logged(broker, listen, tmp_path, caplog):
    caplog.set_level("DEBUG")
    for notifier in broker.use_wrong_password(tmp_path / "other"):
        caplog.clear()
        listener = listen(notifier, is_waiting=False).listener
        notifier.publish([SHIP])
        notifier.publish([MAIL])
        notifier.take(Hint("job_scheduled", "shop.ship", 5, "aa"), 1, "a")
        until(lambda: all(text in caplog.text for text in broker.failures))
        assert not listener.is_alive
        listener.close()
        assert "s3cret" not in caplog.text
        assert "s3cret" not in repr(notifier)


@contextmanager
def repeatedly(call):
    """Call a function again and again on another thread, with the event that ends the block."""
    done = threading.Event()

    def run():
        while not done.is_set():
            call(done)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@pytest.mark.slow
def test_repeated_kills_of_the_server_delay_no_job_beyond_the_poll(broker, start_process):
    workers = [start_process(**broker.worker(POLL_SECONDS=POLL_SECONDS), LEASE_SECONDS="60") for _ in range(2)]
    for worker in workers:
        worker.until_ready()

    def kill(done):
        if not done.wait(2):
            broker.server.kill()
            done.wait(random.uniform(0.1, 1.2))
            broker.server.start()

    with repeatedly(kill):
        ends_at = time.monotonic() + 9
        while time.monotonic() < ends_at:
            jobs.write.enqueue(0.0)
            time.sleep(0.02)
    count = Job.objects.count()
    until(lambda: Job.objects.with_status("completed").count() == count, 30, lambda: workers[0].output)
    starts = Job.objects.values_list("last_attempt_at", "created_at")
    assert max(started - created for started, created in starts).total_seconds() < POLL_SECONDS + MARGIN_SECONDS
    assert_invariants()
    assert count == Effect.objects.filter(label="written").values("job_id").distinct().count()
    assert set(Job.objects.values_list("attempt", flat=True)) == {1}
    for worker in workers:
        assert "Traceback" not in worker.output


@pytest.mark.slow
def test_flood_delays_no_job_beyond_the_poll(broker, start_process):
    """Ten thousand messages per second on every channel: junk, and forged hints."""
    worker = start_process(**broker.worker(POLL_SECONDS=POLL_SECONDS)).until_ready()
    forged = [encode(job_scheduled("chaos.write", 3)), "9:abc:chaos.write", *(f"::{uuid4()}" for _ in range(300))]
    texts = [text.encode() for text in forged] + [b"junk\xff"] * 250

    def flood(done):
        started = time.monotonic()
        for kind in sorted(KINDS):
            broker.publish(kind, *random.sample(texts, 500) * 2)
        done.wait(max(0, started + 0.1 - time.monotonic()))

    with repeatedly(flood):
        for _ in range(20):
            until_completed(jobs.write.enqueue(0.0), POLL_SECONDS + MARGIN_SECONDS, lambda: worker.output)
    assert_invariants()
    assert "Traceback" not in worker.output
