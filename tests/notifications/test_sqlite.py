"""Wake-ups on SQLite: another connection's commit changes ``PRAGMA data_version``."""

import pytest
from django.db import connection, transaction

from django_jobchains.notifications import get_notifier
from django_jobchains.notifications.hints import RESYNC_HINTS
from tests.shop.models import Effect
from tests.support.statements import statements_of_others
from tests.support.waiting import stays, until, until_completed
from tests.support.worker_app import jobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "sqlite", reason="needs SQLite"),
]


def write():
    Effect.objects.create(job_id=jobs.nothing.item().id, label="x")


def test_listener_notices_commits_but_not_rollbacks_or_reads(listen):
    received = listen(get_notifier("default"))
    received.until_resynced()
    with transaction.atomic():
        write()
        transaction.set_rollback(True)
    list(Effect.objects.all())
    assert stays(lambda: received.hints == [*RESYNC_HINTS], 0.2)
    write()
    received.until_resynced(2)


def test_empty_claims_do_not_wake_other_workers(quick, start_worker):
    """Two idle workers must not wake each other with their queries."""

    def stays_quiet():
        before = statements.count("UPDATE")
        return stays(lambda: statements.count("UPDATE") - before < 10, 0.7)

    with statements_of_others() as statements:
        workers = [start_worker(), start_worker()]
        until(lambda: all(worker.components.claim_loop.idle.is_set() for worker in workers))
        quick.enqueue(delay=3600)
        until(stays_quiet)


def test_listener_recovers_from_errors_of_its_file(quick, start_worker, monkeypatch):
    from django_jobchains.notifications import sqlite

    worker = start_worker()
    until(worker.components.claim_loop.idle.is_set)
    data_version, failures = sqlite._data_version, [OSError("disk"), ValueError("a bug")]

    def failing_at_first(cursor):
        if failures:
            raise failures.pop()
        return data_version(cursor)

    monkeypatch.setattr(sqlite, "_data_version", failing_at_first)
    until(lambda: not failures)
    until_completed(quick.enqueue())
