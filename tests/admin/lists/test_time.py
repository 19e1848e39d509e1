"""The time limit of the queries of a list."""

from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from django_jobchains.admin import base
from django_jobchains.admin.base import TimeLimitExceeded, time_limit
from django_jobchains.admin.lists import changelists
from django_jobchains.models import Job
from tests.admin.lists.browsing import CHAINS, JOBS, address, open_list
from tests.support.attempts import committed
from tests.support.chain_shapes import rows

BOTH = pytest.mark.parametrize("name", [CHAINS, JOBS])
COUNTING = "RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {most})"
#: Statements that take minutes.
ENDLESS = {
    "postgresql": "SELECT pg_sleep(100)",
    "sqlite": f"WITH {COUNTING.format(most=10**10)} SELECT sum(i) FROM n",
}


def run(sql: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


def read_for_ever() -> None:
    run(ENDLESS[connection.vendor])


def settings_now() -> Any:
    if connection.vendor == "postgresql":
        return run("SELECT current_setting('statement_timeout'), current_setting('jit')")
    return None


@pytest.mark.django_db
@BOTH
def test_a_list_that_exceeds_the_time_limit_shows_what_to_do(staff, name, monkeypatch):
    rows(3)
    monkeypatch.setattr(base, "QUERY_SECONDS", 0.05)
    monkeypatch.setattr(changelists.ListAdmin, "searched", lambda *args: read_for_ever())
    reply = staff().get(address(name), {"q": "slow"})
    html = reply.content.decode()
    assert reply.status_code == 503
    assert "The database would have to read too many rows" in html
    assert "result_list" not in html
    monkeypatch.undo()
    assert len(open_list(staff(), name).ids) == 3


@pytest.mark.django_db
def test_the_transaction_is_usable_after_the_time_limit():
    before = settings_now()
    rows(1)
    with pytest.raises(TimeLimitExceeded), time_limit("default", 0.05):
        read_for_ever()
    assert settings_now() == before
    assert Job.objects.count() == 1


@pytest.mark.django_db
def test_a_query_within_the_time_limit_leaves_no_limit_behind():
    before = settings_now()
    with time_limit("default", 60):
        assert Job.objects.count() == 0
    assert settings_now() == before
    with time_limit("default", 0.001):
        pass
    assert run(f"WITH {COUNTING.format(most=300_000)} SELECT count(*) FROM n")[0] == 300_000


@committed
def test_the_time_limit_works_outside_of_a_transaction():
    before = settings_now()
    with pytest.raises(TimeLimitExceeded), time_limit("default", 0.05):
        read_for_ever()
    with time_limit("default", 60):
        assert Job.objects.count() == 0
    assert settings_now() == before
    assert not connection.in_atomic_block


@pytest.mark.django_db
def test_other_database_errors_are_not_translated():
    with pytest.raises(OperationalError), time_limit("default"):
        raise OperationalError("the server is gone")


@pytest.mark.django_db
@pytest.mark.postgresql
def test_a_shorter_timeout_of_the_project_is_kept():
    with transaction.atomic():
        run("SELECT set_config('statement_timeout', '70', true)")
        with time_limit("default", 60):
            assert settings_now()[0] == "70ms"
        run("SELECT set_config('statement_timeout', '0', true)")
        with time_limit("default", 60):
            assert settings_now() == ("1min", "off")
