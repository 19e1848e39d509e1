"""What the user of a request may see. Every page, action, graph, search and figure of the admin asks here.

A project hides rows in two ways: ``get_queryset`` leaves them out, and ``has_view_permission(request, obj)`` refuses
them one by one. Both count everywhere: a row that is hidden in either way is treated as if it did not exist.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar
from uuid import UUID

from django.contrib.admin import ModelAdmin
from django.db.models import Exists, Model, OuterRef, QuerySet
from django.http import HttpRequest

from django_jobchains.admin.payloads import PERMISSION, Payloads
from django_jobchains.conf import get_settings
from django_jobchains.models import Chain, Job
from django_jobchains.trees import with_ids

RowT = TypeVar("RowT", bound=Model)

#: Columns that may be large, and are not needed to decide who sees a row.
LARGE = ("input", "output", "last_error")


class Visibility:
    """The chains and jobs that the user of a request may see.

    ``own`` is the admin class that answers the request. For the other model, the class that is registered on the same
    site decides; unless it is a subclass of ours, its rows are hidden.
    """

    def __init__(self, request: HttpRequest, own: Any) -> None:
        self._request = request
        self._own = own

    def rows(self, model: type[Model]) -> QuerySet[Any]:
        """Return the rows that ``get_queryset`` does not leave out. Pass what you read of them through ``seen``."""
        admin = self._admin(model)
        if admin is None or not admin.has_view_permission(self._request):
            return model._default_manager.using(get_settings().DATABASE).none()
        rows: QuerySet[Any] = admin.get_queryset(self._request)
        return rows

    def seen(self, rows: Iterable[RowT]) -> list[RowT]:
        """Return those of the rows that ``has_view_permission(request, obj)`` does not hide."""
        rows = list(rows)
        if not rows or not self.checks_each_row(type(rows[0])):
            return rows
        admin = self._admin(type(rows[0]))
        return [row for row in rows if admin.has_view_permission(self._request, row)]

    def sees_all(self, model: type[Model]) -> bool:
        """Return whether no row of the model is hidden."""
        admin = self._admin(model)
        return bool(admin and admin.has_view_permission(self._request) and admin.sees_all_rows(self._request))

    def checks_each_row(self, model: type[Model]) -> bool:
        """Return whether ``has_view_permission`` may hide rows that ``get_queryset`` returns."""
        return has_own_view_permission(self._admin(model)) and not self.sees_all(model)

    def within(self, model: type[Model], rows: QuerySet[Any], key: str, column: str = "pk") -> QuerySet[Any]:
        """Narrow ``rows`` of any model, in the query, to those whose ``key`` is the ``column`` of a row in ``rows``."""
        if self.sees_all(model):
            return rows
        return rows.filter(Exists(self.rows(model).filter(**{column: OuterRef(key)})))

    def chains(self, ids: Iterable[UUID]) -> dict[UUID, Chain]:
        """Return the visible chains with these ids, with their current jobs."""
        ids = list(ids)
        return {chain.id: chain for chain in self.seen(with_ids(chains(self.rows(Chain)), ids) if ids else ())}

    def jobs(self, ids: Iterable[UUID]) -> dict[UUID, Job]:
        """Return the visible jobs with these ids."""
        ids = list(ids)
        found = self.rows(Job).filter(pk__in=ids).order_by().defer(*LARGE) if ids else ()
        return {job.id: job for job in self.seen(found)}

    def hidden_chains(self, ids: Collection[UUID]) -> set[UUID]:
        """Return those of the ids whose chains are hidden."""
        return set() if self.sees_all(Chain) else set(ids) - self.chains(ids).keys()

    def hidden_jobs(self, ids: Collection[UUID]) -> set[UUID]:
        """Return those of the ids whose jobs are hidden."""
        return set() if self.sees_all(Job) else set(ids) - self.jobs(ids).keys()

    def chains_with_hidden_jobs(self, chain_ids: Collection[UUID]) -> set[UUID]:
        """Return the ids of those of the chains that have a step which is hidden."""
        if self.sees_all(Job) or not chain_ids:
            return set()
        jobs = Job.objects.using(get_settings().DATABASE).filter(chain_id__in=chain_ids)
        visible = self.rows(Job).filter(pk=OuterRef("pk"))
        hidden = set(jobs.filter(~Exists(visible)).order_by().values_list("chain_id", flat=True).distinct())
        if self.checks_each_row(Job):
            steps = self.rows(Job).filter(chain_id__in=chain_ids).order_by().defer(*LARGE)
            seen = {job.id for job in self.seen(steps)}
            hidden |= {job.chain_id for job in steps if job.id not in seen}
        return hidden

    def may(self, permission: str, row: Model | None = None, model: type[Model] = Job) -> bool:
        """Ask the class of the row, or of the model, whether the user has this permission of ours."""
        admin = self._admin(type(row) if row is not None else model)
        return bool(admin and admin.may(self._request, permission, row))

    def entry_types(self) -> Mapping[str, Any]:
        """Return the job types that the class of chains lets the user start chains with, by name."""
        admin = self._admin(Chain)
        return admin.entry_types(self._request) if admin else {}

    def payloads(self, *rows: Model) -> Payloads:
        """Return what shows payloads that belong to all of these rows: none of them unless each row allows it.

        Without a row, the permission alone decides.
        """
        return Payloads(is_allowed=all(self.may(PERMISSION, row) for row in rows or (None,)))

    def _admin(self, model: type[Model]) -> Any:
        if issubclass(model, self._own.model):
            return self._own
        admin = self._own.admin_site._registry.get(model)
        return admin if hasattr(admin, "sees_all_rows") else None


def chains(queryset: QuerySet[Chain]) -> QuerySet[Chain]:
    """Return the chains with their current jobs, and without what may be large."""
    jobs = (f"current_job__{name}" for name in (*LARGE, "context"))
    return queryset.select_related("current_job").defer(*LARGE, *jobs)


def has_own_view_permission(admin: Any) -> bool:
    """Return whether a class decides itself who may view which row."""
    return admin is not None and type(admin).has_view_permission is not ModelAdmin.has_view_permission


def is_whole(queryset: QuerySet[Any]) -> bool:
    """Return whether a queryset returns every row of its table."""
    query = queryset.query
    return not (query.where or query.is_sliced or query.combinator or query.distinct or query.extra_tables)
