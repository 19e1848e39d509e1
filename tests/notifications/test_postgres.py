"""LISTEN/NOTIFY: another session's commit wakes a worker, and whatever goes wrong costs time alone."""

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from django_jobchains import chains, libpq
from django_jobchains.models import Job
from django_jobchains.notifications import EVERY, KINDS, chain_finished, decode, get_notifier, job_scheduled
from django_jobchains.notifications.hints import LOOK
from django_jobchains.notifications.postgres import PostgresNotifier
from django_jobchains.processors import JobType, Processors
from django_jobchains.waiting import get_watch
from tests.chaos.app import jobs
from tests.notifications.contract import Heard
from tests.worker.fixtures import StartWorker
from tests.worker.processes import StartProcess
from tests.worker.statements import statements_of_others
from tests.worker.waiting import stays, until, until_completed

pytestmark = [pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

CHANNEL = "django_jobchains_scheduled"
FINISHED = "django_jobchains_finished"
LOST = "django_jobchains_lost"
AT_ONCE = 1.0


@pytest.fixture
def session() -> Iterator[Any]:
    """A session of somebody else."""
    parameters = connection.get_connection_params()
    wanted = {name: parameters[name] for name in ("dbname", "user", "password", "host", "port") if parameters.get(name)}
    with psycopg.connect(**wanted, autocommit=True) as session:
        yield session


@pytest.fixture
def quick(processors: Processors) -> JobType[Any, Any]:
    return processors.register("worker.quick")(lambda job: None)


def end_listeners(session: Any) -> int:
    """Ends the sessions that listen, as a restart of a proxy does."""
    rows = session.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid() AND query ~ '^LISTEN|pg_listening_channels'"
    )
    return len(rows.fetchall())


def seconds_until_started(chain: Any) -> float:
    """From the commit to the claim."""
    until(lambda: chain.refresh().current_job.last_attempt_at, 10)
    return float((chain.current_job.last_attempt_at - chain.created_at).total_seconds())


def test_a_commit_here_wakes_an_idle_worker_in_another_process(start_process: StartProcess) -> None:
    process = start_process(jobchains={"POLL_SECONDS": 60}).until_ready()
    first = jobs.nothing.enqueue()
    until_completed(first, 10, lambda: process.output)
    for _ in range(5):
        with transaction.atomic():
            chain = jobs.nothing.enqueue()
        assert seconds_until_started(chain) < AT_ONCE


def test_a_commit_in_another_process_wakes_a_worker_here(
    start_worker: StartWorker, start_process: StartProcess, registry: Any
) -> None:
    """A chain's next step, which a worker here runs and the other does not know."""
    registry.add(jobs.processors)
    worker = start_worker(types=["chaos.step"])
    until(worker.parts.loop.idle.is_set)
    start_process("--type", "chaos.first", "--burst", jobchains={"POLL_SECONDS": 60})
    chain = jobs.first.enqueue(1)
    until(lambda: chain.refresh().status == "completed" and chain.jobs.count() == 3, 30)
    times = [(job.created_at, job.last_attempt_at) for job in chain.jobs if job.chain_index]
    assert all(started is not None and (started - created).total_seconds() < AT_ONCE for created, started in times)


def test_a_listener_that_was_cut_off_comes_back(
    quick: JobType[Any, Any], start_worker: StartWorker, session: Any
) -> None:
    start_worker()
    for _ in range(3):
        until(lambda: end_listeners(session))
        chain = quick.enqueue()
        until_completed(chain, 5)


def test_after_each_connection_the_listener_says_look(session: Any) -> None:
    heard = Heard()
    listener = PostgresNotifier("default").listen(heard)
    try:
        for count in range(1, 4):
            until_looked(heard, count)
            until(lambda: end_listeners(session))
    finally:
        listener.close()


def until_looked(heard: Heard, count: int) -> None:
    until(lambda: heard.hints == [*LOOK] * count, what=lambda: heard.hints)


def test_a_job_committed_while_nobody_listened_runs_when_the_listener_is_back(
    quick: JobType[Any, Any], start_worker: StartWorker, session: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start_worker()
    until(worker.parts.loop.idle.is_set)
    monkeypatch.setattr(get_notifier("default"), "send", lambda hints: None)
    until(lambda: end_listeners(session))
    chain = quick.enqueue()
    until_completed(chain, 5)


def test_a_process_listens_on_one_connection(quick: JobType[Any, Any], start_worker: StartWorker, session: Any) -> None:
    """Its workers, and whoever waits for a chain."""
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    listeners = sessions + "AND query ~ '^LISTEN|pg_listening_channels'"
    start_worker()
    start_worker()
    chain = quick.enqueue(delay=0.5)
    assert chains.wait(chain.id, 10) is None
    assert session.execute(listeners).fetchone() == (1,)
    get_watch("default").close()


def test_who_listens_for_other_kinds_joins_and_leaves(session: Any) -> None:
    """The session follows what is wanted in its process."""
    notifier = get_notifier("default")
    worker, waiter = Heard(), Heard()
    first = notifier.listen(worker, {"job_scheduled"})
    until(lambda: worker.hints)
    second = notifier.listen(waiter, {"chain_finished"})
    until(lambda: waiter.hints)
    everything = Heard()
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


def test_a_session_that_no_longer_listens_is_replaced(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As behind a transaction pooler: nothing is wrong with the connection but that it is deaf."""
    monkeypatch.setattr("django_jobchains.notifications.postgres.PROBE_SECONDS", 0.1)
    monkeypatch.setattr("django_jobchains.notifications.postgres.TICK_SECONDS", 0.05)
    connect, opened = psycopg.connect, []

    def keeps(**parameters: Any) -> Any:
        opened.append(connect(**parameters))
        return opened[-1]

    monkeypatch.setattr(psycopg, "connect", keeps)
    notifier = PostgresNotifier("default")  # nobody else in this process listens by it
    notifier.is_proven = True
    heard = Heard()
    listener = notifier.listen(heard)
    try:
        until_looked(heard, 1)
        assert stays(lambda: len(opened) == 1, 0.5)
        channels = {kind: f"another_{kind}" for kind in KINDS}
        monkeypatch.setattr(notifier, "channels", channels)
        until_looked(heard, 2)
        assert len(opened) == 2
    finally:
        listener.close()
    until(lambda: all(raw.closed for raw in opened))


JUNK = ["", "*", ":", "::", "1:2", "x::worker.quick", "-1::a", "{}", "\u202e", "9" * 7_000, "1:xyz:a", "::\n"]
JUNK.append("::" + "x" * 201)


def test_junk_payloads_are_ignored(session: Any) -> None:
    heard = Heard()
    listener = get_notifier("default").listen(heard)
    try:
        until(lambda: heard.hints)
        for payload in JUNK:
            for channel in (CHANNEL, FINISHED, LOST):
                session.execute("SELECT pg_notify(%s, %s)", [channel, payload])
        session.execute("SELECT pg_notify(%s, '::shop.ship')", [CHANNEL])
        until(lambda: job_scheduled("shop.ship") in heard.hints)
        known = {*LOOK, job_scheduled("shop.ship")}
        assert [hint for hint in heard.hints if hint not in known] == []
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
def test_a_flood_that_is_not_for_this_worker_costs_no_statement(
    quick: JobType[Any, Any], start_worker: StartWorker, session: Any, channel: str, payload: str
) -> None:
    with statements_of_others() as statements:
        worker = start_worker()
        until(worker.parts.loop.idle.is_set)
        before = len(statements)
        flood(session, payload, 10_000, channel)
        chain = quick.enqueue()
        until_completed(chain, 5)
        assert len(statements) - before < 30


def test_a_flood_of_forged_hints_costs_few_looks(
    quick: JobType[Any, Any], start_worker: StartWorker, session: Any
) -> None:
    """Anybody with a database login may write to the channel. A look a few milliseconds is enough for every hint."""
    with statements_of_others() as statements:
        worker = start_worker()
        until(worker.parts.loop.idle.is_set)
        before, started = len(statements), time.monotonic()
        while time.monotonic() - started < 1.5:
            flood(session, "::*", 50)
            flood(session, "::worker.quick", 50)
            flood(session, "1:{:x}:worker.quick", 50)
        assert len(statements) - before < 1.5 * 250
        chain = quick.enqueue()
        until_completed(chain, 5)


def flood(session: Any, payload: str, count: int, channel: str = CHANNEL) -> None:
    with session.pipeline():
        for number in range(count):
            session.execute("SELECT pg_notify(%s, %s)", [channel, payload.format(number)])


def notified(session: Any, seconds: float = 0.5) -> list[tuple[str, int | None]]:
    """Subjects and counts."""
    texts = [notification.payload for notification in session.notifies(timeout=seconds)]
    hints = [decode("job_scheduled", text) for text in texts]
    return [(hint.subject, hint.count) for hint in hints if hint]


def test_nothing_is_notified_before_the_outermost_commit(session: Any) -> None:
    session.execute(f"LISTEN {CHANNEL}")
    with transaction.atomic():
        jobs.nothing.enqueue()
        with transaction.atomic():
            jobs.write.enqueue(0)
            transaction.set_rollback(True)
        assert notified(session, 0.2) == []
    assert notified(session) == [("chaos.nothing", 1)]


def test_a_notify_is_no_part_of_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commit would hold a lock over the whole database."""
    execute, sent = libpq.execute, []

    def watch(raw: Any, sql: str) -> Any:
        sent.append((sql.split(maxsplit=1)[0], raw.info.transaction_status.name))
        return execute(raw, sql)

    monkeypatch.setattr(libpq, "execute", watch)
    with transaction.atomic():
        jobs.nothing.enqueue()
    assert sent == [("NOTIFY", "IDLE")]


def test_several_hints_take_one_round_trip(session: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for channel in (CHANNEL, FINISHED):
        session.execute(f"LISTEN {channel}")
    execute, sent = libpq.execute, []
    monkeypatch.setattr(libpq, "execute", lambda raw, sql: sent.append(sql) or execute(raw, sql))
    PostgresNotifier("default").publish(
        [job_scheduled("it's; a \\ type", 1), job_scheduled("b"), chain_finished(EVERY)]
    )
    assert len(sent) == 1
    channels = [notification.channel for notification in session.notifies(timeout=0.5, stop_after=3)]
    assert sorted(channels) == [FINISHED, CHANNEL, CHANNEL]


def test_a_thousand_enqueues_in_one_transaction_send_few_notifications(session: Any) -> None:
    session.execute(f"LISTEN {CHANNEL}")
    with transaction.atomic():
        for _ in range(1_000):
            jobs.nothing.enqueue()
    assert Job.objects.count() == 1_000
    assert 1 <= len(notified(session)) < 20


def test_a_thousand_types_are_sent_as_one_notification(session: Any) -> None:
    session.execute(f"LISTEN {CHANNEL}")
    types = [JobType[Any, Any](f"type.{number}") for number in range(1_000)]
    chains.enqueue_many([job_type.item() for job_type in types])
    assert notified(session) == [("*", None)]


def test_a_session_that_ends_before_it_notifies_undoes_nothing(session: Any, caplog: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pid = cursor.fetchone()[0]
    with transaction.atomic():
        transaction.on_commit(lambda: session.execute("SELECT pg_terminate_backend(%s)", [pid]) and None)
        chain = jobs.nothing.enqueue()
    connection.close()
    assert Job.objects.filter(pk=chain.id).exists()
    assert "Wake-ups were not sent" in caplog.text
