"""Wake-ups by LISTEN and NOTIFY. Lost connections, junk and floods only delay jobs."""

import time
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from django_jobchains import chains
from django_jobchains.db import libpq
from django_jobchains.models import Job
from django_jobchains.notifications import EVERY, KINDS, chain_finished, decode, get_notifier, job_scheduled
from django_jobchains.notifications.hints import RESYNC_HINTS
from django_jobchains.notifications.postgres import PostgresNotifier
from django_jobchains.notifications.waiting import get_watcher
from django_jobchains.processors import JobType
from django_jobchains.testing.contracts import ReceivedHints
from tests.support.statements import statements_of_others
from tests.support.waiting import stays, until, until_completed
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

CHANNEL = "django_jobchains_scheduled"
FINISHED = "django_jobchains_finished"
LOST = "django_jobchains_lost"


@pytest.fixture
def session():
    """A session that Django does not know."""
    parameters = connection.get_connection_params()
    names = ("dbname", "user", "password", "host", "port")
    given = {name: parameters[name] for name in names if parameters.get(name)}
    with psycopg.connect(**given, autocommit=True) as session:
        yield session


@pytest.fixture
def quick(processors):
    return processors.register("worker.quick")(lambda job: None)


def end_listeners(session):
    """Terminate the listening sessions, as the restart of a proxy does, and return their number."""
    rows = session.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND query ~ '^LISTEN|pg_listening_channels'"
    )
    return len(rows.fetchall())


def test_listener_requests_a_resync_after_each_connection(session):
    received = ReceivedHints()
    listener = PostgresNotifier("default").listen(received)
    try:
        for count in range(1, 4):
            until_resynced(received, count)
            until(lambda: end_listeners(session))
    finally:
        listener.close()


def until_resynced(received, count):
    until(lambda: received.hints == [*RESYNC_HINTS] * count, what=lambda: received.hints)


def test_job_committed_without_a_listener_runs_after_the_reconnection(quick, start_worker, session, monkeypatch):
    worker = start_worker()
    until(worker.components.claim_loop.idle.is_set)
    monkeypatch.setattr(get_notifier("default"), "send", lambda hints: None)
    until(lambda: end_listeners(session))
    chain = quick.enqueue()
    until_completed(chain)


def test_process_listens_on_one_connection(quick, start_worker, session):
    """Its workers and its waiters share a listener."""
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    listeners = sessions + "AND query ~ '^LISTEN|pg_listening_channels'"
    start_worker()
    start_worker()
    chain = quick.enqueue(delay=0.5)
    assert chains.wait(chain.id, 30) is None
    assert session.execute(listeners).fetchone() == (1,)
    get_watcher("default").close()


def test_session_follows_the_kinds_its_listeners_want(session):
    notifier = get_notifier("default")
    worker, waiter = ReceivedHints(), ReceivedHints()
    first = notifier.listen(worker, {"job_scheduled"})
    until(lambda: worker.hints)
    second = notifier.listen(waiter, {"chain_finished"})
    until(lambda: waiter.hints)
    everything = ReceivedHints()
    third = notifier.listen(everything)
    until(lambda: sorted(hint.kind for hint in everything.hints) == sorted(KINDS))
    third.close()
    notifier.publish([job_scheduled("shop.ship"), chain_finished(EVERY)])
    until(lambda: len(worker.hints) == len(waiter.hints) == 2)
    assert {hint.kind for hint in worker.hints} == {"job_scheduled"}
    assert {hint.kind for hint in waiter.hints} == {"chain_finished"}
    first.close()
    for channel in (CHANNEL, FINISHED):
        session.execute("SELECT pg_notify(%s, '::*')", [channel])
    until(lambda: len(waiter.hints) == 3)
    second.close()
    assert len(worker.hints) == 2


def test_session_that_no_longer_listens_is_replaced(session, monkeypatch):
    """Behind a transaction pooler, a connection works but may receive no notifications."""
    monkeypatch.setattr("django_jobchains.notifications.postgres.PROBE_SECONDS", 0.1)
    monkeypatch.setattr("django_jobchains.notifications.postgres.TICK_SECONDS", 0.05)
    connect, opened = psycopg.connect, []

    def recorded_connect(**parameters):
        opened.append(connect(**parameters))
        return opened[-1]

    monkeypatch.setattr(psycopg, "connect", recorded_connect)
    notifier = PostgresNotifier("default")  # a new one, so that nothing else in this process listens with it
    notifier.is_proven = True
    received = ReceivedHints()
    listener = notifier.listen(received)
    try:
        until_resynced(received, 1)
        assert stays(lambda: len(opened) == 1, 0.5)
        channels = {kind: f"another_{kind}" for kind in KINDS}
        monkeypatch.setattr(notifier, "channels", channels)
        until_resynced(received, 2)
        assert len(opened) == 2
    finally:
        listener.close()
    until(lambda: all(raw.closed for raw in opened))


JUNK = ["", "*", ":", "::", "1:2", "x::worker.quick", "-1::a", "{}", "\u202e", "9" * 7_000, "1:xyz:a", "::\n"]
JUNK.append("::" + "x" * 201)


def test_junk_payloads_are_ignored(session):
    received = ReceivedHints()
    listener = get_notifier("default").listen(received)
    try:
        until(lambda: received.hints)
        for payload in JUNK:
            for channel in (CHANNEL, FINISHED, LOST):
                session.execute("SELECT pg_notify(%s, %s)", [channel, payload])
        session.execute("SELECT pg_notify(%s, '::shop.ship')", [CHANNEL])
        until(lambda: job_scheduled("shop.ship") in received.hints)
        known = {*RESYNC_HINTS, job_scheduled("shop.ship")}
        assert [hint for hint in received.hints if hint not in known] == []
        assert listener.is_alive
    finally:
        listener.close()


@pytest.mark.parametrize(
    ("channel", "payload"),
    [
        (CHANNEL, "junk {}"),
        (CHANNEL, "1::other.type.{}"),
        (FINISHED, "::*"),
        (LOST, "::00000000-0000-4000-8000-{:012x}"),
    ],
)
def test_flood_of_irrelevant_hints_causes_no_statement(quick, start_worker, session, channel, payload):
    with statements_of_others() as statements:
        worker = start_worker()
        until(worker.components.claim_loop.idle.is_set)
        before, started = len(statements), time.monotonic()
        flood(session, payload, 10_000, channel)
        chain = quick.enqueue()
        until_completed(chain)
        allowance_of_an_idle_worker = 20 * (time.monotonic() - started)
        assert len(statements) - before < 30 + allowance_of_an_idle_worker


def test_flood_of_forged_hints_causes_few_queries(quick, start_worker, session):
    """Any database user may write to the channel. One query every few milliseconds covers all hints."""
    with statements_of_others() as statements:
        worker = start_worker()
        until(worker.components.claim_loop.idle.is_set)
        before, started = len(statements), time.monotonic()
        while time.monotonic() - started < 1.5:
            flood(session, "::*", 50)
            flood(session, "::worker.quick", 50)
            flood(session, "1:{:x}:worker.quick", 50)
        assert len(statements) - before < 250 * (time.monotonic() - started)
        chain = quick.enqueue()
        until_completed(chain)


def flood(session, payload, count, channel=CHANNEL):
    with session.pipeline():
        for number in range(count):
            session.execute("SELECT pg_notify(%s, %s)", [channel, payload.format(number)])


def notified(session):
    """Return the subjects and counts of the first notification and of those that follow closely."""
    found = [*session.notifies(timeout=30, stop_after=1), *session.notifies(timeout=0.5)]
    texts = [notification.payload for notification in found]
    hints = [decode("job_scheduled", text) for text in texts]
    return [(hint.subject, hint.count) for hint in hints if hint]


def test_notify_is_sent_outside_the_transaction(monkeypatch):
    """The commit of a transaction with NOTIFY takes a lock on the whole database."""
    execute, sent = libpq.execute, []

    def recorded_execute(raw, sql):
        sent.append((sql.split(maxsplit=1)[0], raw.info.transaction_status.name))
        return execute(raw, sql)

    monkeypatch.setattr(libpq, "execute", recorded_execute)
    with transaction.atomic():
        jobs.nothing.enqueue()
    assert sent == [("NOTIFY", "IDLE")]


def test_several_hints_take_one_round_trip(session, monkeypatch):
    for channel in (CHANNEL, FINISHED):
        session.execute(f"LISTEN {channel}")
    execute, sent = libpq.execute, []
    monkeypatch.setattr(libpq, "execute", lambda raw, sql: sent.append(sql) or execute(raw, sql))
    PostgresNotifier("default").publish(
        [job_scheduled("it's; a \\ type", 1), job_scheduled("b"), chain_finished(EVERY)]
    )
    assert len(sent) == 1
    channels = [notification.channel for notification in session.notifies(timeout=30, stop_after=3)]
    assert sorted(channels) == [FINISHED, CHANNEL, CHANNEL]


def test_thousand_types_are_sent_as_one_notification(session):
    session.execute(f"LISTEN {CHANNEL}")
    types = [JobType[Any, Any](f"type.{number}") for number in range(1_000)]
    chains.enqueue_many([job_type.item() for job_type in types])
    assert notified(session) == [("*", None)]


def test_session_lost_before_the_notification_undoes_nothing(session, caplog):
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    with transaction.atomic():
        transaction.on_commit(lambda: session.execute("SELECT pg_terminate_backend(%s)", [pid]) and None)
        chain = jobs.nothing.enqueue()
    connection.close()
    assert Job.objects.filter(pk=chain.id).exists()
    assert "Wake-ups were not sent" in caplog.text
