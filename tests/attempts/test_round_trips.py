"""The round trips to PostgreSQL that an attempt's transaction takes, and its behavior on errors between them."""

import math

import pytest
from django.db import connection
from psycopg import pq

from django_jobchains import chains
from django_jobchains.models import FailedAttempt
from django_jobchains.processors import Backoff
from django_jobchains.store.postgresql import dialect
from tests.shop.models import Effect
from tests.support.attempts import committed
from tests.support.connections import end_session

pytestmark = [committed, pytest.mark.postgresql]

NO_BACKOFF = Backoff(initial_seconds=0)


class Trace:
    """libpq's trace of the protocol messages of one connection."""

    def __init__(self, path):
        self._file = path.open("wb")
        self._path = path

    def start(self):
        connection.ensure_connection()
        connection.connection.pgconn.trace(self._file.fileno())
        connection.connection.pgconn.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)

    @property
    def sent(self):
        """The messages after which the client waits for an answer."""
        lines = self._path.read_text(errors="replace").splitlines()
        fields = [line.split("\t") for line in lines]
        return [" ".join(field[2:]) for field in fields if field[0] == "F" and field[2] in ("Query", "Sync")]

    @property
    def prepared_by_psycopg(self):
        """The lines about statements that psycopg has prepared."""
        return [line for line in self._path.read_text(errors="replace").splitlines() if '"_pg3_' in line]


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """Trace messages. Slow or old statements are not prepared again, because that would take another round trip."""
    monkeypatch.setattr(dialect, "SLOW_SECONDS", math.inf)
    monkeypatch.setattr(dialect, "PLAN_SECONDS", math.inf)
    trace = Trace(tmp_path / "trace")
    yield trace
    trace._file.close()


def effect(job):
    Effect.objects.create(job_id=job.id, label="written")


def numbers(chains):
    return [job.attempt for chain in chains for job in chain.refresh().jobs.order_by("chain_index")]


@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_attempt_with_one_write_takes_three_round_trips(processors, work, trace, mode):
    """They are BEGIN with the lock, the write, and the outcome with COMMIT."""

    @processors.register("writes", mode=mode)
    def writes(job):
        if mode == "staged":
            if job.input == 1:
                trace.start()
            with job.complete():
                effect(job)
        else:
            effect(job)
            if job.input == 0:
                trace.start()

    writes.enqueue(0, priority=1)
    writes.enqueue(1)
    work(slots=1)
    sent = trace.sent if mode == "staged" else trace.sent[-3:]
    assert [message.split()[0] for message in sent] == ["Query", "Query", "Query"]
    assert "BEGIN; EXECUTE" in sent[0]
    assert "INSERT" in sent[1]
    assert "COMMIT" in sent[2]
    assert Effect.objects.count() == 2


def test_statements_are_still_sent_directly_after_a_batch(processors, work, trace):
    """A statement that psycopg sends takes Parse, Bind, Describe and Execute, and psycopg may prepare it."""

    @processors.register("together", batch_limit=5)
    def together(batch):
        if not batch[0].input:
            trace.start()
        with batch.complete():
            chains.enqueue_many([alone.item(0), alone.item(0)])

    @processors.register("alone")
    def alone(job):
        with job.complete():
            effect(job)

    chains.enqueue_many([together.item(number) for number in range(3)])
    work(slots=1)
    assert Effect.objects.count() == 2
    assert [message.split()[0] for message in trace.sent[-3:]] == ["Query", "Query", "Query"]
    assert "BEGIN; EXECUTE" in trace.sent[-3]
    assert not trace.prepared_by_psycopg


@pytest.mark.parametrize("options", [{}, {"server_side_binding": True, "prepare_threshold": 0}])
def test_handler_may_drop_and_alter_tables_in_its_transaction(processors, work, monkeypatch, options):
    """psycopg then deallocates all its prepared statements of the connection."""
    connection.ensure_connection()  # the connection of this thread keeps its options after the test
    monkeypatch.setitem(connection.settings_dict, "OPTIONS", {**connection.settings_dict["OPTIONS"], **options})

    @processors.register("tidies")
    def tidies(job):
        other.enqueue(0)
        with job.complete(), connection.cursor() as cursor:
            cursor.execute("CREATE TEMPORARY TABLE tidied (id int)")
            cursor.execute("ALTER TABLE tidied ADD COLUMN label text")
            cursor.execute("DROP TABLE tidied")
        return job.continue_with("tidies", job.input + 1) if job.input < 3 else None

    @processors.register("other")
    def other(job):
        with job.complete():
            effect(job)

    chains = [tidies.enqueue(0) for _ in range(3)]
    work(slots=1)
    assert numbers(chains) == [1] * 12
    assert not FailedAttempt.objects.exists()


def test_connection_can_be_used_after_a_rolled_back_attempt(processors, work):
    @processors.register("fails_first", backoff=NO_BACKOFF, max_attempts=3)
    def fails_first(job):
        beside.enqueue()  # psycopg prepares this statement, and deallocates it after the rollback
        with job.complete():
            effect(job)
            if job.attempt == 1:
                raise ValueError("not yet")
        return None if job.input else job.continue_with("fails_first", 1)

    @processors.register("beside")
    def beside(job):
        pass

    chains = [fails_first.enqueue(0) for _ in range(3)]
    work(slots=1)
    assert numbers(chains) == [2] * 6
    assert set(FailedAttempt.objects.values_list("error", flat=True)) == {"ValueError: not yet"}
    assert Effect.objects.count() == 6


def test_session_that_ends_before_the_transaction_costs_no_attempt(processors, work):
    @processors.register("cut")
    def cut(job):
        connection.ensure_connection()
        end_session(connection.connection)
        with job.complete():
            effect(job)

    chains = [cut.enqueue() for _ in range(2)]
    work(slots=1)
    assert numbers(chains) == [1, 1]
    assert Effect.objects.count() == 2


@pytest.mark.parametrize("place", ["before the finish", "before the commit"])
def test_session_that_ends_in_the_transaction_fails_the_attempt(processors, work, place):
    @processors.register("cut", backoff=NO_BACKOFF, max_attempts=3)
    def cut(job):
        with job.complete():
            effect(job)
            if job.attempt == 1 and place == "before the finish":
                end_session(connection.connection)
            elif job.attempt == 1:
                cut.enqueue(delay=1_000)  # after another statement of the store, COMMIT is sent separately
                end_before_commit(connection.connection)

    chain = cut.enqueue()
    work(slots=1)
    assert numbers([chain]) == [2]
    assert FailedAttempt.objects.count() == 1
    assert Effect.objects.count() == 1


def end_before_commit(raw):
    commit = raw.commit

    def cut():
        end_session(raw)
        commit()

    raw.commit = cut
