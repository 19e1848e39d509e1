"""Wake-ups by LISTEN and NOTIFY. Lost connections, junk and floods only delay jobs."""

import time

import psycopg
import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, transaction

from django_jobchains import chains
from django_jobchains.db import libpq
from django_jobchains.db.connections import is_watched
from django_jobchains.models import Job
from django_jobchains.notifications import EVERY, KINDS, chain_finished, get_notifier, job_scheduled, postgres
from django_jobchains.notifications.postgres import PostgresNotifier
from django_jobchains.notifications.waiting import get_watcher
from django_jobchains.processors import JobType
from tests.support.databases import database
from tests.support.statements import statements_of_others
from tests.support.waiting import stays, until, until_completed
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

CHANNEL = "django_jobchains_scheduled"
FINISHED = "django_jobchains_finished"
LOST = "django_jobchains_lost"
SHIP = job_scheduled("shop.ship")
OTHERS = "pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
LISTENERS = f"{OTHERS} AND query ~ '^LISTEN|pg_listening_channels'"


@pytest.fixture
def session():
    """A session that Django does not know."""
    parameters = connection.get_connection_params()
    names = ("dbname", "user", "password", "host", "port")
    given = {name: parameters[name] for name in names if parameters.get(name)}
    with psycopg.connect(**given, autocommit=True) as session:
        yield session


@pytest.fixture
def notifier(settings, monkeypatch):
    """A notifier that has not passed the self-test yet."""
    monkeypatch.setattr(postgres, "SELF_TEST_SECONDS", 30)
    monkeypatch.setattr(postgres, "TICK_SECONDS", 0.05)
    settings.JOBCHAINS = {}
    return get_notifier("default")


@pytest.fixture
def idle_worker(start_worker):
    worker = start_worker()
    until(worker.components.claim_loop.idle.is_set)


def end_listeners(session):
    """Terminate the listening sessions, as the restart of a proxy does, and return their number."""
    return len(session.execute(f"SELECT pg_terminate_backend(pid) FROM {LISTENERS}").fetchall())


def flood(session, payload, count, channel=CHANNEL):
    with session.pipeline():
        for number in range(count):
            session.execute("SELECT pg_notify(%s, %s)", [channel, payload.format(number)])


# Listening


def test_listener_requests_a_resync_after_each_connection(session, listen):
    received = listen(PostgresNotifier("default"))
    for count in range(1, 4):
        received.until_resynced(count)
        until(lambda: end_listeners(session))


def test_job_committed_without_a_listener_runs_after_the_reconnection(quick, idle_worker, session, monkeypatch):
    monkeypatch.setattr(get_notifier("default"), "send", lambda hints: None)
    until(lambda: end_listeners(session))
    until_completed(quick.enqueue())


def test_process_listens_on_one_connection(quick, start_worker, session):
    """Its workers and its waiters share a listener."""
    start_worker()
    start_worker()
    assert chains.wait(quick.enqueue(delay=0.5), 30) == 1
    assert session.execute(f"SELECT count(*) FROM {LISTENERS}").fetchone() == (1,)
    get_watcher("default").close()


def test_session_that_no_longer_listens_is_replaced(listen, monkeypatch):
    """Behind a transaction pooler, a connection works but may receive no notifications."""
    monkeypatch.setattr(postgres, "PROBE_SECONDS", 0.1)
    monkeypatch.setattr(postgres, "TICK_SECONDS", 0.05)
    connect, opened = psycopg.connect, []
    monkeypatch.setattr(psycopg, "connect", lambda **options: opened.append(connect(**options)) or opened[-1])
    notifier = PostgresNotifier("default")  # a new one, so that nothing else in this process listens with it
    notifier.is_proven = True
    received = listen(notifier)
    received.until_resynced()
    assert stays(lambda: len(opened) == 1, 0.5)
    monkeypatch.setattr(notifier, "channels", {kind: f"another_{kind}" for kind in KINDS})
    received.until_resynced(2)
    assert len(opened) == 2
    received.listener.close()
    until(lambda: all(raw.closed for raw in opened))


JUNK = [
    "", "*", ":", "::", "1:2", "x::worker.quick", "-1::a", "{}", "\u202e", "9" * 7_000, "1:xyz:a", "::\n",
    "::" + "x" * 201,
]  # fmt: skip


@pytest.mark.parametrize(
    ("channel", "payload"),
    [
        (CHANNEL, "junk {}"),
        (CHANNEL, "1::other.type.{}"),
        (FINISHED, "::*"),
        (LOST, "::00000000-0000-4000-8000-{:012x}"),
    ],
)
def test_flood_of_irrelevant_hints_causes_no_statement(quick, request, session, channel, payload):
    with statements_of_others() as statements:
        request.getfixturevalue("idle_worker")
        before, started = len(statements), time.monotonic()
        flood(session, payload, 10_000, channel)
        until_completed(quick.enqueue())
        allowance_of_an_idle_worker = 20 * (time.monotonic() - started)
        assert len(statements) - before < 30 + allowance_of_an_idle_worker


def test_flood_of_forged_hints_causes_few_queries(quick, request, session):
    """Any database user may write to the channel. One query every few milliseconds covers all hints."""
    with statements_of_others() as statements:
        request.getfixturevalue("idle_worker")
        before, started = len(statements), time.monotonic()
        while time.monotonic() - started < 1.5:
            for payload in ("::*", "::worker.quick", "1:{:x}:worker.quick"):
                flood(session, payload, 50)
        assert len(statements) - before < 250 * (time.monotonic() - started)
        until_completed(quick.enqueue())


# The self-test of a listener: one that receives nothing logs it and is not alive


def test_self_test_succeeds_once_per_notifier(notifier, listen, caplog):
    for _ in range(2):
        received = listen(notifier)
        received.until_resynced()
        assert notifier.is_proven
        received.listener.close()
        notifier.notify = None  # a second self-test would fail
    assert not caplog.text


def test_listener_that_receives_nothing_logs_a_remedy_and_is_not_alive(notifier, listen, caplog, monkeypatch):
    monkeypatch.setattr(postgres, "SELF_TEST_SECONDS", 0.3)
    monkeypatch.setattr(notifier, "notify", lambda payloads: None)
    received = listen(notifier, is_waiting=False)
    until(lambda: "do not arrive" in caplog.text)
    assert "'listen_using': 'direct'" in caplog.text
    assert not received.listener.is_alive
    assert stays(lambda: caplog.text.count("do not arrive") == 1, 1.0), "the warning is throttled"


def test_failed_self_test_does_not_prevent_listening(notifier, listen, monkeypatch):
    def notify(payloads):
        raise ConnectionError("too many clients")

    monkeypatch.setattr(notifier, "notify", notify)
    listen(notifier).until_resynced()
    assert not notifier.is_proven


def test_listen_using_selects_the_database(settings, django_db_blocker):
    settings.JOBCHAINS = {"NOTIFIER": {"OPTIONS": {"listen_using": "direct"}}}
    with database("direct", {"HOST": "nowhere.invalid"}, django_db_blocker):
        assert postgres._connection_parameters(get_notifier("default").listen_using)["host"] == "nowhere.invalid"


def test_listen_using_must_be_an_alias(settings):
    settings.JOBCHAINS = {"NOTIFIER": {"OPTIONS": {"listen_using": "direkt"}}}
    with pytest.raises(ImproperlyConfigured, match=r"no database 'direkt'\. Known: default"):
        get_notifier("default")


# Sending


@pytest.fixture
def executed(monkeypatch):
    """The statements that are sent without a cursor, each with the state of its transaction."""
    connection.ensure_connection()
    is_watched(connection)  # The first call of a process asks the server whether there is a pooler.
    execute, executed = libpq.execute, []

    def recorded_execute(raw, sql):
        executed.append((sql.split(maxsplit=1)[0], raw.info.transaction_status.name))
        return execute(raw, sql)

    monkeypatch.setattr(libpq, "execute", recorded_execute)
    return executed


def test_notify_is_sent_outside_the_transaction(executed):
    """The commit of a transaction with NOTIFY takes a lock on the whole database."""
    with transaction.atomic():
        jobs.nothing.enqueue()
    assert executed == [("NOTIFY", "IDLE")]


def test_several_hints_take_one_round_trip(session, executed):
    for channel in (CHANNEL, FINISHED):
        session.execute(f"LISTEN {channel}")
    PostgresNotifier("default").publish([job_scheduled("it's; a \\ type"), SHIP, chain_finished(EVERY)])
    assert len(executed) == 1
    channels = [notification.channel for notification in session.notifies(timeout=30, stop_after=3)]
    assert sorted(channels) == [FINISHED, CHANNEL, CHANNEL]


def test_thousand_types_are_sent_as_one_notification(session):
    session.execute(f"LISTEN {CHANNEL}")
    chains.enqueue_many([JobType(f"type.{number}").item() for number in range(1_000)])
    found = [*session.notifies(timeout=30, stop_after=1), *session.notifies(timeout=0.5)]
    assert [notification.payload for notification in found] == ["::*"]


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
