"""The time limit of the queries of a page."""

import pytest
from django.db import OperationalError, connection, transaction

from django_jobchains.admin.base import TimeLimitExceeded, time_limit
from django_jobchains.models import Job
from tests.support.attempts import committed
from tests.support.chain_shapes import rows

COUNTING = "RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {most})"
#: Statements that take minutes.
ENDLESS = {
    "postgresql": "SELECT pg_sleep(100)",
    "sqlite": f"WITH {COUNTING.format(most=10**10)} SELECT sum(i) FROM n",
}


def run(sql):
    with connection.cursor() as cursor:
        cursor.execute(sql)
        return cursor.fetchone()


def settings_now():
    if connection.vendor == "postgresql":
        return run("SELECT current_setting('statement_timeout'), current_setting('jit')")
    return None


@pytest.mark.parametrize(
    "in_transaction", [pytest.param(True, marks=pytest.mark.django_db), pytest.param(False, marks=committed)]
)
def test_a_slow_query_is_stopped_and_leaves_no_limit_behind(in_transaction):
    before = settings_now()
    rows(1)
    with pytest.raises(TimeLimitExceeded), time_limit("default", 0.05):
        run(ENDLESS[connection.vendor])
    with time_limit("default", 60):
        assert Job.objects.count() == 1
    assert settings_now() == before
    assert connection.in_atomic_block is in_transaction
    with time_limit("default", 0.001):
        pass
    assert run(f"WITH {COUNTING.format(most=300_000)} SELECT count(*) FROM n")[0] == 300_000


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
