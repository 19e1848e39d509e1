"""On SQLite a prune has the write lock before it reads: nobody writes between its look and its deletions."""

import sqlite3
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.utils import timezone

from django_jobchains.models import Job
from django_jobchains.store import Ended, Store
from tests.interventions.chains_at import completed
from tests.store.connections import committing, stopped_before

pytestmark = [
    committing,
    pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL locks rows, not the database"),
]


def test_a_prune_has_the_write_lock_when_it_has_read(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where transactions begin without a lock, as they do on SQLite unless a project says otherwise."""
    monkeypatch.setitem(connections.settings["default"]["OPTIONS"], "transaction_mode", "DEFERRED")
    chain = completed(store)
    ended = Ended(("completed",), timezone.now() + timedelta(days=1))
    pruning = stopped_before(2, lambda store: store.prune([chain.id], ended))
    other = sqlite3.connect(connection.settings_dict["NAME"], timeout=0)
    try:
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
    finally:
        other.close()
    assert pruning.result().deleted == {chain.id}
    assert not Job.objects.exists()
    assert pruning.conflicts == []
