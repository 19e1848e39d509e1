"""Tells the harness how to count a worker's commits, to kill it at one of them, and to fail receivers of signals."""

from contextlib import contextmanager

import pytest
from django.db import connections
from django.tasks.signals import task_enqueued, task_finished, task_started
from due_work_harness import configure
from due_work_harness.integrations.django import django_host
from due_work_harness.integrations.django.commits import DjangoWorker
from due_work_harness.integrations.django.receivers import django_receiver_breaker

from django_jobchains.store import get_store
from django_jobchains.store.sqlite import SQLiteDatabase


def pytest_configure():
    breaker = django_receiver_breaker(task_enqueued, task_started, task_finished)
    host = django_host({"django_jobchains"}, receiver_breaker=breaker)
    if connections["default"].vendor == "sqlite":
        host = host.model_copy(update={"worker_killer": sqlite_worker_killer})
    configure(host)


@contextmanager
def sqlite_worker_killer(kill_after):
    """Do for SQLite what the harness does for PostgreSQL: count commits, and die right after the chosen one."""
    connection = connections["default"]
    connection.ensure_connection()
    worker, raw = DjangoWorker(connection, kill_after), connection.connection
    changes = raw.total_changes
    commit, fetch = type(connection).commit, SQLiteDatabase.fetch

    def count():
        """Count a commit if anything was written, and the transaction is over."""
        nonlocal changes
        if not raw.in_transaction and raw.total_changes != changes:
            changes = raw.total_changes
            worker.committed()

    def counted_commit(database):
        worker.refuse_if_dead()
        commit(database)
        count()

    def counted_statement(execute, sql, params, many, context):
        if not (worker.dead and sql.startswith("ROLLBACK")):
            worker.refuse_if_dead()
        result = execute(sql, params, many, context)
        count()
        return result

    def counted_fetch(*args):
        """A statement with RETURNING has written when its rows are fetched."""
        rows = fetch(*args)
        count()
        return rows

    try:
        with pytest.MonkeyPatch.context() as patch, connection.execute_wrapper(counted_statement):
            patch.setattr(type(connection), "commit", counted_commit)
            patch.setattr(SQLiteDatabase, "fetch", counted_fetch)
            yield worker
    finally:
        if worker.dead:
            connection.close()


@pytest.fixture(autouse=True)
def _same_clock(transactional_db):
    """Put the database's clock back, which a test may have moved."""
    yield
    get_store().db.ahead_seconds = 0
