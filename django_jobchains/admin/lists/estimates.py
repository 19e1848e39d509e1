"""Counts the rows of a list: exactly if there are few, and otherwise with an estimate."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from django.db import connections
from django.utils.translation import gettext

from django_jobchains.admin.base import TimeLimitExceeded, time_limit
from django_jobchains.db.keyset import PagedQuerySet
from django_jobchains.text.humanize import number

#: The number of rows up to which they are counted.
COUNT_LIMIT = 10_000
#: The time limit of the count.
COUNT_SECONDS = 0.05


class Precision(Enum):
    """How a count relates to the number of rows."""

    EXACT = "exact"
    ABOUT = "about"
    MORE = "more"


@dataclass(frozen=True)
class RowCount:
    """The number of rows of a list, with its precision."""

    rows: int
    precision: Precision = Precision.EXACT

    def __str__(self) -> str:
        sentences = {
            Precision.EXACT: gettext("%(number)s in total"),
            Precision.ABOUT: gettext("about %(number)s in total"),
            Precision.MORE: gettext("more than %(number)s in total"),
        }
        return sentences[self.precision] % {"number": number(self.rows)}


def count_rows(rows: PagedQuerySet[Any], shown: int) -> RowCount:
    """Count the rows of a list that has more than the ``shown`` rows."""
    planned = _planner_estimate(rows)
    if planned is not None and planned > COUNT_LIMIT:
        return _rounded(planned)
    try:
        with time_limit(rows.db, COUNT_SECONDS):
            counted = rows.order_by()[: COUNT_LIMIT + 1].count()
    except TimeLimitExceeded:
        return RowCount(shown, Precision.MORE) if planned is None or planned <= shown else _rounded(planned)
    return RowCount(COUNT_LIMIT, Precision.MORE) if counted > COUNT_LIMIT else RowCount(counted)


def _planner_estimate(rows: PagedQuerySet[Any]) -> int | None:
    """Return the estimate of the query planner, or None if the database has none."""
    if connections[rows.db].vendor != "postgresql":
        return None
    [plan] = json.loads(rows.order_by().values("pk").explain(format="json"))
    return int(plan["Plan"]["Plan Rows"])


def _rounded(estimate: int) -> RowCount:
    """Round an estimate to two significant digits."""
    return RowCount(int(float(f"{estimate:.1e}")), Precision.ABOUT)
