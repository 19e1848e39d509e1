"""A check warns about a database that may lose what it has acknowledged, if it can know."""

import pytest
from django.core import checks
from django.db import connection

from django_jobchains.declare.checks import check_commits

pytestmark = pytest.mark.django_db

STANDBY = "CREATE TEMP VIEW pg_stat_replication AS SELECT 7 AS pid, 'streaming' AS state"
#: What a role without pg_read_all_stats sees.
HIDDEN = "CREATE TEMP VIEW pg_stat_replication AS SELECT NULL::int AS pid, NULL AS state"
SUBSCRIBER = "CREATE TEMP VIEW pg_replication_slots AS SELECT 7 AS active_pid, 'logical' AS slot_type"


def problems(*statements):
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)
    found = check_commits(databases=["default"])
    assert {message.id for message in found} <= {"jobchains.W013"}
    return [message.msg.partition(": ")[2] for message in found]


def test_a_database_without_standbys_is_not_reported():
    assert problems() == []


@pytest.mark.postgresql
@pytest.mark.parametrize("statements", [[HIDDEN], [STANDBY, SUBSCRIBER]], ids=["hidden", "logical"])
def test_what_may_not_be_a_standby_is_not_reported(statements):
    assert problems(*statements) == []


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("statements", "problem"),
    [
        (["SET LOCAL synchronous_commit = off"], "synchronous_commit is off"),
        ([STANDBY], "synchronous_standby_names is empty"),
    ],
)
def test_commits_that_may_be_lost_are_reported(statements, problem):
    (found,) = problems(*statements)
    assert problem in found


@pytest.mark.postgresql
def test_it_is_a_deployment_check_that_needs_a_database():
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = off")

    def found(**options):
        return [message.id for message in checks.run_checks(**options) if message.id == "jobchains.W013"]

    assert found(include_deployment_checks=True, databases=["default"]) == ["jobchains.W013"]
    assert found(include_deployment_checks=True) == []
    assert found(databases=["default"]) == []
