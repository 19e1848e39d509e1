"""One key, one chain, also for projects that run PostgreSQL above READ COMMITTED, where a snapshot may be old.

The caller's transaction may fail with a conflict; then it has changed nothing.
"""

from contextlib import suppress

import pytest
from django.db import NotSupportedError, OperationalError, connection, transaction

from django_jobchains.chains import Chain
from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.attempts.work import elsewhere
from tests.deduplication.chains_at import start
from tests.store.connections import committing, holding, waiting

pytestmark = [committing, pytest.mark.postgresql, pytest.mark.slow]

scopes = pytest.mark.parametrize("scope", ["incomplete", "any"])


def use(level: str) -> None:
    """For this connection."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {level}")


def start_at(level: str, input: str, scope: str) -> Chain:
    use(level)
    return start(input, scope=scope)


@scopes
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_an_enqueue_that_waited_for_the_key_gets_the_chain(level: str, scope: str) -> None:
    def first_call(store: Store) -> Chain:
        if level == "SERIALIZABLE":  # conflicts are seen between transactions that are all so
            with connection.cursor() as cursor:
                cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        return start("first", scope=scope)

    first = holding(first_call)
    second = waiting(lambda store: start_at(level, "second", scope))
    first.go_on()
    assert second.result().id == first.result().id
    assert Job.objects.get().input == "first"


@scopes
@pytest.mark.parametrize("level", ["READ COMMITTED", "SERIALIZABLE"])
def test_a_transaction_that_began_before_the_chain_gets_it_or_fails(level: str, scope: str) -> None:
    use(level)
    with suppress(OperationalError), transaction.atomic():
        assert not Job.objects.exists()  # takes the snapshot
        elsewhere(start_at, level, "first", scope)
        start("second", scope=scope)
    connection.close()
    assert Job.objects.get().input == "first"


def test_at_repeatable_read_a_key_is_refused_in_the_callers_transaction() -> None:
    use("REPEATABLE READ")
    with pytest.raises(NotSupportedError, match="REPEATABLE READ"), transaction.atomic():
        start()
    connection.close()
    assert not Job.objects.exists()
