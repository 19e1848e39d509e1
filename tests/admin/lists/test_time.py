"""A list that would take too long says so."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.test import Client

from django_jobchains.admin import lists, reading
from django_jobchains.admin.reading import TookTooLong, bounded
from django_jobchains.models import Job
from tests.admin.lists.seen import CHAINS, JOBS, address, look
from tests.attempts.work import committed
from tests.queries.shapes import rows

BOTH = pytest.mark.parametrize("name", [CHAINS, JOBS])
COUNTING = "RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {most})"
#: Lasts for minutes.
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
def test_a_list_that_takes_too_long_shows_nothing_and_says_what_to_do(
    staff: Callable[..., Client], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows(3)
    monkeypatch.setattr(reading, "READ_SECONDS", 0.05)
    monkeypatch.setattr(lists.ListedAdmin, "searched", lambda *args: read_for_ever())
    reply = staff().get(address(name), {"q": "slow"})
    html = reply.content.decode()
    assert reply.status_code == 503
    assert "The database has to look through too many rows" in html
    assert "result_list" not in html
    monkeypatch.undo()
    assert len(look(staff(), name).ids) == 3


@pytest.mark.django_db
def test_after_it_the_transaction_goes_on_as_before() -> None:
    before = settings_now()
    rows(1)
    with pytest.raises(TookTooLong), bounded("default", 0.05):
        read_for_ever()
    assert settings_now() == before
    assert Job.objects.count() == 1


@pytest.mark.django_db
def test_what_is_in_time_is_read_and_leaves_no_limit_behind() -> None:
    before = settings_now()
    with bounded("default", 5):
        assert Job.objects.count() == 0
    assert settings_now() == before
    with bounded("default", 0.001):
        pass
    assert run(f"WITH {COUNTING.format(most=300_000)} SELECT count(*) FROM n")[0] == 300_000


@committed
def test_outside_of_a_transaction_too() -> None:
    before = settings_now()
    with pytest.raises(TookTooLong), bounded("default", 0.05):
        read_for_ever()
    with bounded("default", 5):
        assert Job.objects.count() == 0
    assert settings_now() == before
    assert not connection.in_atomic_block


@pytest.mark.django_db
def test_another_error_of_the_database_stays_what_it_is() -> None:
    with pytest.raises(OperationalError), bounded("default"):
        raise OperationalError("the server is gone")


@pytest.mark.django_db
@pytest.mark.postgresql
def test_a_shorter_time_of_the_projects_own_stays_shorter() -> None:
    with transaction.atomic():
        run("SELECT set_config('statement_timeout', '70', true)")
        with bounded("default", 60):
            assert settings_now()[0] == "70ms"
        run("SELECT set_config('statement_timeout', '0', true)")
        with bounded("default", 60):
            assert settings_now() == ("1min", "off")
