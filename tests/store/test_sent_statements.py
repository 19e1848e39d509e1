"""Statements that the store sends without Django's cursor keep to Django's rules."""

import pytest
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError

from tests.support.connections import committing
from tests.support.jobs import create, running_job

pytestmark = committing


def test_nothing_is_written_in_a_transaction_that_must_be_rolled_back(store):
    with transaction.atomic():
        connection.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            create(store)


def test_wrapper_sees_every_statement(store):
    job = running_job(store)
    seen = []

    def see(execute, sql, *args):
        seen.append(sql)
        return execute(sql, *args)

    with connection.execute_wrapper(see):
        assert store.jobs.state_of(job.id) == ("running", 1)
    assert [sql.split()[0] for sql in seen] == ["SELECT"]
