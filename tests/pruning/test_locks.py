"""On SQLite a prune takes the write lock before it reads, so that nothing changes before it deletes."""

import sqlite3
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.utils import timezone

from django_jobchains.models import Job
from django_jobchains.store.retention import EndedChains
from tests.support.chains import completed
from tests.support.connections import committing, stopped_before

pytestmark = [
    committing,
    pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL locks rows, not the database"),
]


def test_prune_takes_the_write_lock_before_it_reads(store, monkeypatch):
    """This holds even if transactions begin without a lock, which is SQLite's default."""
    monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "transaction_mode", "DEFERRED")
    chain = completed(store)
    ended = EndedChains(("completed",), timezone.now() + timedelta(days=1))
    pruning = stopped_before(2, lambda store: store.retention.prune([chain.id], ended))
    other = sqlite3.connect(connection.settings_dict["NAME"], timeout=0)
    try:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
    finally:
        other.close()
    assert pruning.result().deleted == {chain.id}
    assert not Job.objects.exists()
    assert pruning.conflicts == []
