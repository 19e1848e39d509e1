"""How many rows a list has, without counting them all: exactly when they are few, else about, and said so."""

import json
from dataclasses import dataclass
from enum import Enum
from typing import Any

from django.db import connections
from django.utils.translation import gettext

from django_jobchains.admin.reading import TookTooLong, bounded
from django_jobchains.admin.words import number
from django_jobchains.pages import PagedQuerySet

#: Rows are counted up to here,
COUNT_TO = 10_000
#: and for no longer than this.
COUNT_SECONDS = 0.05


class Precision(Enum):
    EXACT = "exact"
    ABOUT = "about"
    MORE = "more"


@dataclass(frozen=True)
class Amount:
    rows: int
    precision: Precision = Precision.EXACT

    def __str__(self) -> str:
        sentences = {
            Precision.EXACT: gettext("%(number)s in all"),
            Precision.ABOUT: gettext("about %(number)s in all"),
            Precision.MORE: gettext("more than %(number)s in all"),
        }
        return sentences[self.precision] % {"number": number(self.rows)}


def amount_of(rows: PagedQuerySet[Any], shown: int) -> Amount:
    """Of a list that goes on after the ``shown`` rows."""
    planned = _planned(rows)
    if planned is not None and planned > COUNT_TO:
        return _about(planned)
    try:
        with bounded(rows.db, COUNT_SECONDS):
            counted = rows.order_by()[: COUNT_TO + 1].count()
    except TookTooLong:
        return Amount(shown, Precision.MORE) if planned is None or planned <= shown else _about(planned)
    return Amount(COUNT_TO, Precision.MORE) if counted > COUNT_TO else Amount(counted)


def _planned(rows: PagedQuerySet[Any]) -> int | None:
    """The planner's estimate; None where there is none."""
    if connections[rows.db].vendor != "postgresql":
        return None
    [plan] = json.loads(rows.order_by().values("pk").explain(format="json"))
    return int(plan["Plan"]["Plan Rows"])


def _about(estimate: int) -> Amount:
    """Rounded to two figures: more would pretend to know."""
    return Amount(int(float(f"{estimate:.1e}")), Precision.ABOUT)
