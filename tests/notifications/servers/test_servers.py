"""What Redis and NATS have in common: subscriptions, junk, floods, forks, outages and secrets."""

import random
import threading
import time
from uuid import uuid4

import pytest

from django_jobchains.models import Job
from django_jobchains.notifications import (
    EVERY,
    KINDS,
    Hint,
    chain_finished,
    get_notifier,
    job_scheduled,
    ownership_lost,
)
from django_jobchains.notifications.hints import RESYNC_HINTS, encode
from django_jobchains.testing.contracts import ReceivedHints
from tests.shop.models import Effect
from tests.support.forks import Child
from tests.support.invariants import assert_invariants
from tests.support.waiting import until, until_completed
from tests.support.worker_app import jobs

pytestmark = pytest.mark.django_db(transaction=True)

SHIP, MAIL = job_scheduled("shop.ship"), job_scheduled("mail.send")
OUTAGES = ["stop", "kill", "freeze"]
#: The longest time that a job waits without hints, and what a busy machine adds to it.
POLL_SECONDS, MARGIN_SECONDS = 2.0, 10.0
JUNK = [
    b"",
    b"*",
    b":",
    b"junk",
    b"1:2",
    b"x:y:z",
    b"-1::a",
    b"NaN::a",
    b"{}",
    b"9" * 7_000,
    b"1:xyz:a",
    b"1:abc:\n",
    b"::\xff\xfe",
    b"::" + b"x" * 201,
    b"1:abc:" + b"x" * 900_000,
]


@pytest.fixture
def listen():
    """Listen, wait until the listener is connected, and close it after the test."""
    listeners = []

    def listen(notifier, received, kinds=KINDS):
        listeners.append(notifier.listen(received, kinds))
        until(lambda: listeners[-1].is_alive)
        return listeners[-1]

    yield listen
    for listener in listeners:
        listener.close()


def end_outage(broker, outage):
    broker.server.thaw() if outage == "freeze" else broker.server.start()


def test_listener_subscribes_only_to_the_requested_kinds(broker, listen):
    notifier, received, lost = get_notifier("default"), ReceivedHints(), ReceivedHints()
    first = listen(notifier, received, {"job_scheduled"})
    assert broker.subscribed(notifier) == {"job_scheduled"}
    second = listen(notifier, lost, {"ownership_lost"})
    until(lambda: lost.hints == [ownership_lost(EVERY)])
    assert broker.subscribed(notifier) == {"job_scheduled", "ownership_lost"}
    assert received.hints == [job_scheduled(EVERY)]
    first.close()
    until(lambda: broker.subscribed(notifier) == {"ownership_lost"})
    third = listen(notifier, received, {"job_scheduled"})
    until(lambda: received.hints == [job_scheduled(EVERY)] * 2)
    assert broker.subscribed(notifier) == {"job_scheduled", "ownership_lost"}
    second.close()
    third.close()
    until(lambda: not broker.subscribed(notifier))


@pytest.mark.parametrize("separate", [{"using": "other"}, {"prefix": "their-shop"}], ids=["database", "prefix"])
def test_channels_depend_on_database_and_prefix(broker, listen, separate):
    received, own, other = ReceivedHints(), broker.make(**separate), broker.make()
    listen(own, received)
    until(lambda: received.hints == [*RESYNC_HINTS])
    other.publish([SHIP])
    other.close()  # closing sends the hint
    own.publish([MAIL])
    until(received.of_a_type)
    assert received.of_a_type() == [MAIL]
    own.close()


def test_junk_is_ignored(broker, listen, caplog):
    received = ReceivedHints()
    listen(get_notifier("default"), received)
    until(lambda: received.hints == [*RESYNC_HINTS])
    for kind in sorted(KINDS):
        broker.publish(kind, *JUNK)
    broker.publish("nothing", b"1:abc:a")
    broker.publish("job_scheduled", encode(SHIP).encode())
    until(received.of_a_type)
    assert received.hints == [*RESYNC_HINTS, SHIP]
    assert not caplog.text


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_forked_child_has_its_own_connection(broker, listen):
    received, notifier = ReceivedHints(), get_notifier("default")
    listener = listen(notifier, received)
    notifier.publish([job_scheduled("before")])
    until(lambda: job_scheduled("before") in received.hints)

    def publish():
        new, own = get_notifier("default"), ReceivedHints()
        assert new is not notifier
        assert not listener.is_alive
        listening = new.listen(own)
        until(lambda: listening.is_alive)
        notifier.publish([job_scheduled("by.the.old.one")])
        new.publish([job_scheduled("child")])
        until(lambda: {job_scheduled("child"), job_scheduled("by.the.old.one")} <= set(own.hints))
        listening.close()
        notifier.close()
        new.close()
        return True

    child = Child([publish])
    assert child.answer() is True
    child.end()
    until(lambda: {job_scheduled("child"), job_scheduled("by.the.old.one")} <= set(received.hints))
    notifier.publish([job_scheduled("after")])
    until(lambda: job_scheduled("after") in received.hints)
    assert received.hints.count(job_scheduled(EVERY)) == 1, "the listener did not reconnect"


def test_closing_a_notifier_does_not_close_its_listener(broker, listen):
    notifier, received = broker.make(), ReceivedHints()
    listener = listen(notifier, received)
    notifier.publish([SHIP])
    notifier.close()
    assert listener.is_alive
    sender = broker.make()
    sender.publish([MAIL])
    until(lambda: {SHIP, MAIL} <= set(received.hints))
    listener.close()
    sender.close()


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


@pytest.mark.parametrize("outage", OUTAGES)
def test_hints_arrive_again_after_an_outage(broker, listen, outage):
    broker.detect_soon()
    notifier = get_notifier("default")
    notifier.publish([job_scheduled("before")])
    getattr(broker.server, outage)()
    notifier.publish([job_scheduled("lost")])
    end_outage(broker, outage)
    received = ReceivedHints()
    other = broker.make()
    listen(other, received)
    until(lambda: notifier.publish([job_scheduled(uuid4().hex)]) or received.of_a_type())
    other.close()


def test_listener_notices_a_frozen_server_and_its_return(broker):
    broker.detect_soon()
    before = set(threading.enumerate())
    notifier, received = get_notifier("default"), ReceivedHints()
    listener = notifier.listen(received)
    until(lambda: listener.is_alive and set(received.hints) == set(RESYNC_HINTS))
    broker.server.freeze()
    until(lambda: not listener.is_alive)
    received.hints.clear()
    broker.server.thaw()
    until(lambda: listener.is_alive)
    until(lambda: set(received.hints) == set(RESYNC_HINTS))
    until(lambda: notifier.publish([job_scheduled(uuid4().hex)]) or received.of_a_type())
    broker.server.freeze()
    until(lambda: not listener.is_alive)
    listener.close()
    notifier.close()
    until(lambda: set(threading.enumerate()) <= before)
    broker.server.thaw()


def test_passwords_are_not_logged(broker, tmp_path, caplog):
    caplog.set_level("DEBUG")
    for notifier in broker.use_wrong_password(tmp_path / "other"):
        caplog.clear()
        listener = notifier.listen(ReceivedHints())
        notifier.publish([SHIP])
        notifier.publish([MAIL])
        notifier.take(Hint("job_scheduled", "shop.ship", 5, "aa"), 1, "a")
        until(lambda: all(text in caplog.text for text in broker.failures))
        assert not listener.is_alive
        listener.close()
        assert "s3cret" not in caplog.text
        assert "s3cret" not in repr(notifier)


@pytest.mark.slow
def test_repeated_kills_of_the_server_delay_no_job_beyond_the_poll(broker, start_process):
    workers = [start_process(**broker.worker(POLL_SECONDS=POLL_SECONDS), LEASE_SECONDS="60") for _ in range(2)]
    for worker in workers:
        worker.until_ready()
    done = threading.Event()

    def kill_repeatedly():
        while not done.wait(2):
            broker.server.kill()
            done.wait(random.uniform(0.1, 1.2))
            broker.server.start()

    killer = threading.Thread(target=kill_repeatedly)
    killer.start()
    try:
        ends_at = time.monotonic() + 9
        while time.monotonic() < ends_at:
            jobs.write.enqueue(0.0)
            time.sleep(0.02)
    finally:
        done.set()
        killer.join()
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
    stop = threading.Event()
    forged = {
        "job_scheduled": [encode(job_scheduled("chaos.write", 3)), "9:abc:chaos.write", *_hints(job_scheduled)],
        "chain_finished": _hints(chain_finished),
        "ownership_lost": _hints(ownership_lost),
    }

    def flood():
        while not stop.is_set():
            started = time.monotonic()
            for kind in sorted(KINDS):
                texts = [text.encode() for text in forged[kind]] + [b"junk\xff"] * 250
                broker.publish(kind, *random.sample(texts, 500) * 2)
            stop.wait(max(0, started + 0.1 - time.monotonic()))

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        for _ in range(20):
            until_completed(jobs.write.enqueue(0.0), POLL_SECONDS + MARGIN_SECONDS, lambda: worker.output)
    finally:
        stop.set()
        flooding.join()
    assert_invariants()
    assert "Traceback" not in worker.output


def _hints(about):
    return [encode(about(str(uuid4()))) for _ in range(300)]
