"""Keyset pages: a cursor contains the exact end of a page, so that an index finds the start of the next.

Jobs are listed by chain: the newest chain first, with its steps together. So one pair of columns orders every list, and
an index that starts with a status or a type serves lists of that status or type.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Generic, Self, TypeVar
from uuid import UUID

from django.db import connections
from django.db.models import BooleanField, F, Func, Index, Model, Q, QuerySet, Subquery
from django.db.models.lookups import Exact, In

from django_jobchains.conf import current_database
from django_jobchains.db.ids import first_id_at
from django_jobchains.db.times import as_compared, checked_time
from django_jobchains.exceptions import InvalidCursor
from django_jobchains.statuses import FINAL, OPEN, Status

MAX_PAGE_SIZE = 1_000
#: A page of rows with up to this number of types is combined from one page for each type.
MAX_COMBINED_NAMES = 20
#: How far the clock of a host that creates ids may differ from the database's in ``created_between``.
MAX_CLOCK_DIFFERENCE = timedelta(minutes=10)

#: Groups of statuses. The rows of a group are found by the same index: docs/decisions/0081-indexes-of-lists.md.
_STATES = (FINAL, (Status.BLOCKED,), (Status.PENDING,), (Status.RUNNING,))

Orders = tuple[tuple[str, ...], ...]
ModelT = TypeVar("ModelT", bound=Model)


@dataclass(frozen=True)
class Page(Generic[ModelT]):
    """Some rows, and the cursor of the rows after them, which is None after the last page."""

    items: Sequence[ModelT]
    next_cursor: str | None

    def __iter__(self) -> Iterator[ModelT]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class Unindexed(Exact):
    """A condition ``column = value`` that SQLite does not look up in an index.

    SQLite does not know how many rows have a value, and may choose the index of a column that most rows agree on.
    """

    def as_sqlite(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        sql, params = self.as_sql(compiler, connection)
        return f"+{sql}", list(params)


class InArray(In):
    """``id IN (…)`` in a form for which PostgreSQL does not scan all rows in the order of the page."""

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        column, params = self.process_lhs(compiler, connection)
        subquery, subquery_params = self.process_rhs(compiler, connection)
        return f"{column} = ANY(ARRAY{subquery})", [*params, *subquery_params]


class AnyState(Func):
    """True, in a form for which PostgreSQL combines the indexes of the rows in each state."""

    output_field = BooleanField()

    def __init__(self) -> None:
        super().__init__(F("status"))

    def as_sql(self, compiler: Any, connection: Any, *args: Any, **context: Any) -> Any:
        return "1 = 1", []

    def as_postgresql(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        [status] = self.get_source_expressions()
        sql, params = compiler.compile(status)
        states = [", ".join(f"'{status.value}'" for status in state) for state in _STATES]
        either = " OR ".join(f"{sql} IN ({state})" for state in states)
        return f"({either})", list(params) * len(states)


class ListIndex(Index):
    """An index for lists, which on PostgreSQL contains only the rows of its condition.

    PostgreSQL writes a new entry to each index whenever a job is claimed or ends. SQLite writes one when an indexed
    column changes.
    """

    def create_sql(self, model: type[Model], schema_editor: Any, using: str = "", **kwargs: Any) -> Any:
        if schema_editor.connection.vendor == "postgresql":
            return super().create_sql(model, schema_editor, using, **kwargs)
        return Index(fields=self.fields, name=self.name).create_sql(model, schema_editor, using, **kwargs)


class JobTablesQuerySet(QuerySet[ModelT]):
    """A QuerySet on the database that ``JOBCHAINS["DATABASE"]`` names, unless ``using()`` is called.

    Database routers are not used, as for every other access to the job tables. Each model has its manager as
    ``base_manager_name``, too, because Django reads related objects and deferred fields through the base manager.
    """

    @property
    def db(self) -> str:
        own: Any = self
        instance = own._hints.get("instance")
        alias: str = own._db or (instance and instance._state.db) or current_database()
        return alias


class PagedQuerySet(JobTablesQuerySet[ModelT]):
    """A QuerySet with keyset pages. ``page_orders``: the possible orders, each by the columns of one index."""

    page_orders: Orders
    #: The statuses of the rows, and a column (type, chain type or queue) with its values. A page is combined from
    #: smaller pages, each with one value and with one status or one of ``_STATES``. An index finds each of them.
    _statuses: tuple[str, ...] | None = None
    _named: tuple[str, tuple[str, ...]] | None = None

    def page(self, after: str | None = None, limit: int = 50) -> Page[ModelT]:
        """Return the next ``limit`` rows after a cursor, newest first by default. Raises ``InvalidCursor``."""
        if not 1 <= limit <= MAX_PAGE_SIZE:
            raise ValueError(f"limit={limit!r} must be from 1 to {MAX_PAGE_SIZE}.")
        if not self.query.standard_ordering:
            order = tuple(map(str, self.query.order_by)) or self.page_orders[0]
            opposite = [name[1:] if name.startswith("-") else f"-{name}" for name in order]
            return self.reverse().order_by(*opposite).page(after, limit)
        order = tuple(map(str, self.query.order_by)) or self.page_orders[0]
        if order not in self.page_orders:
            orders = " or ".join(f"order_by{given}" for given in self.page_orders)
            raise ValueError(f"There are no pages in the order {order}. Use {orders}.")
        rows = list(self._rows_after(order, after, limit + 1))
        items = rows[:limit]
        return Page(items, _encoded(order, _key(items[-1], order)) if len(rows) > limit else None)

    def cursor_after(self, row: ModelT) -> str:
        """Return the cursor of the rows after this one, in the order of the pages."""
        order = tuple(map(str, self.query.order_by)) or self.page_orders[0]
        return _encoded(order, _key(row, order))

    def _rows_after(self, order: tuple[str, ...], after: str | None, limit: int) -> Self:
        rows = self._without_any_state()
        rest = rows if after is None else rows._filter_first(_beyond(order, _decoded(after, order)))
        pages = [part.order_by(*order)[:limit].values("pk") for part in rest._parts()]
        if len(pages) > 1:
            first, *others = pages
            # For a plain IN, PostgreSQL may choose to read and sort all rows of all alternatives.
            rest = rest.filter(InArray(F("pk"), Subquery(first.union(*others, all=True))))
        return rest.order_by(*order)[:limit]

    def _filter_first(self, condition: Q) -> Self:
        """Filter by a bound on a column. Of several bounds, SQLite searches by this one, because it comes first."""
        filtered = self.filter(condition)
        number, conditions = len(self.query.where.children), filtered.query.where.children
        filtered.query.where.children = conditions[number:] + conditions[:number]
        return filtered

    def _parts(self) -> list[Self]:
        """Return one QuerySet per status and name. One statement combines them, so that a row that moves is seen once.

        SQLite does not need this: it stops after the first rows of each value anyway.
        """
        if not connections[self.db].features.supports_slicing_ordering_in_compound:
            return []
        if self._statuses is not None:
            states: Iterable[tuple[str, ...]] = ((status,) for status in self._statuses)
        elif self._named is not None:
            states = _STATES
        else:
            return []
        column, values = self._named or ("", ())
        names = [{column: value} for value in values] if 0 < len(values) <= MAX_COMBINED_NAMES else [{}]
        return [self.filter(status__in=state, **name) for state in states for name in names]

    def _without_any_state(self) -> Self:
        """Remove ``AnyState``, for which PostgreSQL might read all rows with a name to sort them."""
        rows = self.all()
        conditions = rows.query.where
        conditions.children = [each for each in conditions.children if not isinstance(_left(each), AnyState)]
        return rows

    def __or__(self, other: Any) -> Any:
        return _without_alternatives(super().__or__(other))

    def __xor__(self, other: Any) -> Any:
        return _without_alternatives(super().__xor__(other))

    def _any_of(self, name: str, values: tuple[str, ...]) -> Self:
        found = self.filter(**{f"{name}__in": values})
        values = tuple(dict.fromkeys(values))
        if name == "status":
            found._statuses = values
        else:
            found = found if self._named else found.filter(AnyState())
            found._named = name, values
        return found

    def _clone(self) -> Self:
        clone: Self = super()._clone()  # type: ignore[misc]
        clone._statuses, clone._named, clone.page_orders = self._statuses, self._named, self.page_orders
        return clone


class ChainPartQuerySet(PagedQuerySet[ModelT]):
    """The filters that chains and jobs share."""

    def of_schedule(self, name: str) -> Self:
        """Chains that a schedule has enqueued, or their jobs."""
        return self.filter(schedule_name=name)

    def incomplete(self) -> Self:
        """Jobs that may still run, or chains whose last job may: blocked, pending or running."""
        return self._any_of("status", OPEN)

    def in_queue(self, queue: str) -> Self:
        """Jobs of this queue, or chains whose current job is in it."""
        if self._statuses is None and self._named is None:
            return self._any_of("queue", (queue,))
        # SQLite uses the index of the other filter.
        found = self.filter(Unindexed(F("queue"), queue))
        found._named = found._named or ("queue", (queue,))
        return found

    def created_between(self, start: datetime | None, end: datetime | None) -> Self:
        """Rows that were created at ``start`` or later and before ``end``. None means no limit.

        They are found by their ids, which contain the time of the host that created them. Rows are missing if you
        passed ids that are not time-ordered, or if the clock of that host differs from the database's by more than ten
        minutes.
        """
        rows = self
        for name, lookup, given, difference in (
            ("start", "gte", start, -MAX_CLOCK_DIFFERENCE),
            ("end", "lt", end, MAX_CLOCK_DIFFERENCE),
        ):
            if given is not None:
                time = checked_time(given, name)
                first_id = first_id_at(time + difference)
                rows = rows.filter(**{f"created_at__{lookup}": as_compared(time, self.db), f"id__{lookup}": first_id})
        return rows


def _left(condition: Any) -> Any:
    return getattr(condition, "lhs", None)


def _without_alternatives(combined: Any) -> Any:
    combined = combined.all()
    combined._statuses = combined._named = None
    return combined


def _key(row: Model, order: tuple[str, ...]) -> list[Any]:
    return [getattr(row, name.lstrip("-")) for name in order]


def _beyond(order: tuple[str, ...], values: list[Any]) -> Q:
    """Return a condition that an index can serve: the first column bounds it, and the second orders equal values."""
    beyond = "lt" if order[0].startswith("-") else "gt"
    first, *rest = (name.lstrip("-") for name in order)
    if not rest:
        return Q(**{f"{first}__{beyond}": values[0]})
    return Q(**{f"{first}__{beyond}e": values[0]}) & (
        Q(**{f"{first}__{beyond}": values[0]}) | Q(**{f"{rest[0]}__{beyond}": values[1]})
    )


def _encoded(order: tuple[str, ...], values: list[Any]) -> str:
    return urlsafe_b64encode(json.dumps([*order, *values], default=str).encode()).decode().rstrip("=")


def _decoded(cursor: str, order: tuple[str, ...]) -> list[Any]:
    try:
        parts = json.loads(urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        names, values = parts[: len(order)], parts[len(order) :]
        values = [
            UUID(value) if name.endswith("id") else _name(value) if name.endswith("name") else _step(value)
            for name, value in zip(names, values, strict=True)
        ]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise InvalidCursor(cursor) from error
    if tuple(names) != order:
        raise InvalidCursor(cursor)
    return values


def _name(value: object) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise ValueError(value)
    return value


def _step(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError(value)
    return value
