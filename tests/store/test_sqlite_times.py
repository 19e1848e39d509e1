"""SQLite stores times as text, and the store adds seconds to these texts."""

import pytest
from django.db import connection

from django_jobchains.store import get_store

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "sqlite", reason="needs SQLite"),
]


@pytest.mark.parametrize(("seconds", "moved"), [("0", 0), ("5e-324", 0), ("0.001", 1), ("1.5", 1_500), ("-2", -2_000)])
def test_sum_of_a_time_and_seconds_is_exact_to_the_millisecond(seconds, moved):
    first, last = 2_000, 57_999
    time = "printf('2026-11-21 08:52:%%02d.%%03d000', n / 1000, n %% 1000)"
    sum_ = get_store("default").db.after("time", seconds)
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE times AS (SELECT {first} AS n UNION ALL SELECT n + 1 FROM times WHERE n < {last}) "
            f"SELECT n, substr(sum, 18, 2) * 1000 + substr(sum, 21, 3) "
            f"FROM (SELECT n, {sum_} AS sum FROM (SELECT n, {time} AS time FROM times))",
            [],
        )
        wrong = [(n, found) for n, found in cursor.fetchall() if found != n + moved]
    assert wrong == []
