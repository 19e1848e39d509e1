"""Keyset pages: a cursor says where the last page ended, exactly, and the next one starts there by an index.

Jobs are listed by chain: the newest chain first, its steps together. So one pair of columns orders every list, and an
index that starts with a status or a type serves the list of it.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar
from uuid import UUID

from django.db import connections
from django.db.models import Model, Q, QuerySet

from django_jobchains.conf import get_settings
from django_jobchains.exceptions import InvalidCursor
from django_jobchains.statuses import Status

MOST_ON_A_PAGE = 1_000

#: What makes way for other alternatives: beside it an index serves each type.
_FAILED = ("status", (Status.FAILED,))

Orders = tuple[tuple[str, ...], ...]
ModelT = TypeVar("ModelT", bound=Model)


@dataclass(frozen=True)
class Page(Generic[ModelT]):
    """Some rows, and the cursor of the rows after them; None when these are the last."""

    items: Sequence[ModelT]
    next_cursor: str | None

    def __iter__(self) -> Iterator[ModelT]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)


class JobTablesQuerySet(QuerySet[ModelT]):
    """A QuerySet on the database that ``JOBCHAINS["DATABASE"]`` names, unless ``using()`` says otherwise.

    Routers are not asked, as for every other access to the job tables. Each model names its manager as the
    ``base_manager_name`` too, because Django reads related objects and deferred fields through the base manager.
    """

    @property
    def db(self) -> str:
        own: Any = self
        instance = own._hints.get("instance")
        alias: str = own._db or (instance and instance._state.db) or get_settings().DATABASE
        return alias


class PagedQuerySet(JobTablesQuerySet[ModelT]):
    """A QuerySet with keyset pages. ``page_orders``: the orders it can have, each by the columns of one index."""

    page_orders: Orders
    #: A column and the values it may have; each has a page of its own by an index, of which the page is made.
    _alternatives: tuple[str, tuple[str, ...]] | None = None

    def page(self, after: str | None = None, limit: int = 50) -> Page[ModelT]:
        """The next ``limit`` rows after a cursor, newest first unless ordered otherwise; raises ``InvalidCursor``."""
        if not 1 <= limit <= MOST_ON_A_PAGE:
            raise ValueError(f"limit={limit}: 1 to {MOST_ON_A_PAGE} rows on a page.")
        if not self.query.standard_ordering:
            order = tuple(map(str, self.query.order_by)) or self.page_orders[0]
            return self.reverse().order_by(*map(_opposite, order)).page(after, limit)
        order = tuple(map(str, self.query.order_by)) or self.page_orders[0]
        if order not in self.page_orders:
            orders = " or ".join(f"order_by{given}" for given in self.page_orders)
            raise ValueError(f"No pages in the order of {order}: {orders}.")
        rows = list(self._rows_after(order, after, limit + 1))
        items = rows[:limit]
        return Page(items, _encoded(order, _key(items[-1], order)) if len(rows) > limit else None)

    def cursor_after(self, row: ModelT) -> str:
        """Return the cursor of the rows after this one, in the order of the pages."""
        order = tuple(map(str, self.query.order_by)) or self.page_orders[0]
        return _encoded(order, _key(row, order))

    def _rows_after(self, order: tuple[str, ...], after: str | None, limit: int) -> Self:
        rest = self if after is None else self.filter(_beyond(order, _decoded(after, order)))
        pages = [part.order_by(*order)[:limit].values("pk") for part in rest._parts()]
        if len(pages) > 1:
            first, *others = pages
            rest = rest.filter(pk__in=first.union(*others, all=True))
        return rest.order_by(*order)[:limit]

    def _parts(self) -> list[Self]:
        """In one statement, so that a row that moves from one to the other is seen once.

        SQLite needs none: it stops at the first rows of each of several values by itself.
        """
        if self._alternatives is None or not connections[self.db].features.supports_slicing_ordering_in_compound:
            return []
        name, values = self._alternatives
        return [self.filter(**{name: value}) for value in values]

    def __or__(self, other: Any) -> Any:
        return _without_alternatives(super().__or__(other))

    def __xor__(self, other: Any) -> Any:
        return _without_alternatives(super().__xor__(other))

    def _any_of(self, name: str, values: tuple[str, ...]) -> Self:
        found = self.filter(**{f"{name}__in": values})
        if self._alternatives in (None, _FAILED):
            found._alternatives = name, tuple(dict.fromkeys(values))
        return found

    def _clone(self) -> Self:
        clone: Self = super()._clone()  # type: ignore[misc]
        clone._alternatives, clone.page_orders = self._alternatives, self.page_orders
        return clone


def _without_alternatives(combined: Any) -> Any:
    combined = combined.all()
    combined._alternatives = None
    return combined


def _opposite(name: str) -> str:
    return name.removeprefix("-") if name.startswith("-") else f"-{name}"


def _key(row: Model, order: tuple[str, ...]) -> list[Any]:
    return [getattr(row, name.lstrip("-")) for name in order]


def _beyond(order: tuple[str, ...], values: list[Any]) -> Q:
    """The condition as an index can serve it: the first column bounds, the second decides among its equals."""
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
            UUID(value) if name.endswith("id") else _step(value) for name, value in zip(names, values, strict=True)
        ]
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise InvalidCursor(cursor) from error
    if tuple(names) != order:
        raise InvalidCursor(cursor)
    return values


def _step(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value < 2**31:
        raise ValueError(value)
    return value
