"""Decides what the user of a request may see, for all pages, actions, graphs, searches and figures of the admin.

A project can hide rows with ``get_queryset``, which excludes them, and with ``has_view_permission(request, obj)``,
which rejects single rows. A row that is hidden in either way is treated everywhere as if it did not exist.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar
from uuid import UUID

from django.contrib.admin import ModelAdmin
from django.db.models import Exists, Model, OuterRef, QuerySet, Subquery
from django.db.models.lookups import IsNull
from django.http import HttpRequest

from django_jobchains.admin.display import PERMISSION, Payloads
from django_jobchains.chains.tree import with_ids
from django_jobchains.conf import current_database
from django_jobchains.declare.labels import MAX_INPUT_LENGTH
from django_jobchains.models import Chain, Job
from django_jobchains.models.payload_fields import short_input

RowT = TypeVar("RowT", bound=Model)

#: Columns that may be large and are not needed to decide who may see a row.
LARGE = ("input", "output", "last_error")


class Visibility:
    """The chains and jobs that the user of a request may see.

    ``model_admin`` handles the request. The class that is registered for the other model on the same site decides about
    its rows. They are hidden if it is not a subclass of ``ReadOnlyAdmin``.
    """

    def __init__(self, request: HttpRequest, model_admin: Any) -> None:
        self._request = request
        self._model_admin = model_admin
        self.site_name: str = model_admin.admin_site.name

    def rows(self, model: type[Model]) -> QuerySet[Any]:
        """Return the rows of ``get_queryset``. Pass the rows that you read to ``seen``."""
        admin = self._admin(model)
        if admin is None or not admin.has_view_permission(self._request):
            return model._default_manager.using(current_database()).none()
        rows: QuerySet[Any] = admin.get_queryset(self._request)
        return rows

    def seen(self, rows: Iterable[RowT]) -> list[RowT]:
        """Return the rows that ``has_view_permission(request, obj)`` does not hide."""
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

    def decides_by_row(self, model: type[Model]) -> bool:
        """Return whether the user's permissions can depend on the row."""
        admin = self._admin(model)
        return bool(admin and admin.decides_by_row())

    def within(self, model: type[Model], rows: QuerySet[Any], key: str, column: str = "pk") -> QuerySet[Any]:
        """Filter ``rows`` of any model to those whose ``key`` equals the ``column`` of a visible row of ``model``."""
        if self.sees_all(model):
            return rows
        return rows.filter(Exists(self.rows(model).filter(**{column: OuterRef(key)})))

    def related_to(self, model: type[Model], rows: QuerySet[Any], key: str) -> QuerySet[Any]:
        """Filter ``rows``, whose ``key`` refers to a row of ``model``, to those where that row is visible.

        If each row must be checked, the result is empty, because a query cannot exclude hidden rows.
        """
        if self.sees_all(model):
            return rows
        if self.checks_each_row(model):
            return rows.none()
        # Not EXISTS, which PostgreSQL may turn into a join that reads the rows of all previous pages.
        visible = self.rows(model).filter(pk=OuterRef(key)).order_by().values("pk")[:1]
        return rows.filter(IsNull(Subquery(visible), False))

    def chains(self, ids: Iterable[UUID]) -> dict[UUID, Chain]:
        """Return the visible chains with these ids, with their current jobs."""
        ids = list(ids)
        return {
            chain.id: chain for chain in self.seen(with_ids(with_current_jobs(self.rows(Chain)), ids) if ids else ())
        }

    def jobs(self, ids: Iterable[UUID]) -> dict[UUID, Job]:
        """Return the visible jobs with these ids."""
        ids = list(ids)
        found = self.rows(Job).filter(pk__in=ids).order_by().defer(*LARGE) if ids else ()
        return {job.id: job for job in self.seen(found)}

    def hidden_chains(self, ids: Collection[UUID]) -> set[UUID]:
        """Return the ids of hidden chains among these."""
        return set() if self.sees_all(Chain) else set(ids) - self.chains(ids).keys()

    def hidden_jobs(self, ids: Collection[UUID]) -> set[UUID]:
        """Return the ids of hidden jobs among these."""
        return set() if self.sees_all(Job) else set(ids) - self.jobs(ids).keys()

    def chains_with_hidden_jobs(self, chain_ids: Collection[UUID]) -> set[UUID]:
        """Return the ids of the chains that have a hidden step."""
        if self.sees_all(Job) or not chain_ids:
            return set()
        jobs = Job.objects.using(current_database()).filter(chain_id__in=chain_ids)
        visible = self.rows(Job).filter(pk=OuterRef("pk"))
        hidden = set(jobs.filter(~Exists(visible)).order_by().values_list("chain_id", flat=True).distinct())
        if self.checks_each_row(Job):
            steps = self.rows(Job).filter(chain_id__in=chain_ids).order_by().defer(*LARGE)
            seen = {job.id for job in self.seen(steps)}
            hidden |= {job.chain_id for job in steps if job.id not in seen}
        return hidden

    def may(self, permission: str, row: Model | None = None, model: type[Model] = Job) -> bool:
        """Return whether the admin class of the row or model grants the user a permission of this app."""
        admin = self._admin(type(row) if row is not None else model)
        return bool(admin and admin.may(self._request, permission, row))

    def entry_types(self) -> Mapping[str, Any]:
        """Return the job types that the user may start chains with, by name."""
        admin = self._admin(Chain)
        return admin.entry_types(self._request) if admin else {}

    def chain_type_names(self) -> set[str]:
        """Return the types that the user may filter jobs by the type of their chain; see ``related_to``."""
        admin = self._admin(Chain)
        return set() if admin is None or self.checks_each_row(Chain) else admin.type_names(self._request)

    def payloads(self, *rows: Model) -> Payloads:
        """Return a formatter for payloads of these rows, which hides them unless the user may see them for each row.

        Without rows, only the permission is checked.
        """
        return Payloads(is_allowed=all(self.may(PERMISSION, row) for row in rows or (None,)))

    def label(self, row: Chain | Job, job: Job, stored: str | None) -> str:
        """Return the label of a job, or of a chain for the stored input of its first job. ``job``: the current one.

        Whether that input may be shown can depend on the first job, which is not at hand if the chain has continued.
        """
        if row.pk == job.pk:
            return self.payloads(row, job).label(row.type_name, stored)
        return "" if self.decides_by_row(Job) else self.payloads(row).label(row.type_name, stored)

    def chain_label(self, chain: Chain) -> str:
        """Return the label of one of ``with_current_jobs``. It is empty if jobs may be hidden, as its first one."""
        return self.label(chain, chain.current_job, chain.input_text) if self.sees_all(Job) else ""  # type: ignore[attr-defined]

    def _admin(self, model: type[Model]) -> Any:
        if issubclass(model, self._model_admin.model):
            return self._model_admin
        admin = self._model_admin.admin_site._registry.get(model)
        return admin if hasattr(admin, "sees_all_rows") else None


def with_current_jobs(queryset: QuerySet[Chain]) -> QuerySet[Chain]:
    """Return the chains with their current jobs and, for their labels, short inputs; without large columns."""
    jobs = (f"current_job__{name}" for name in (*LARGE, "context"))
    chains = queryset.select_related("current_job").defer(*LARGE, *jobs)
    return chains.annotate(input_text=short_input(MAX_INPUT_LENGTH))


def has_own_view_permission(admin: Any) -> bool:
    return admin is not None and type(admin).has_view_permission is not ModelAdmin.has_view_permission


def is_whole(queryset: QuerySet[Any]) -> bool:
    """Return whether a queryset returns every row of its table."""
    query = queryset.query
    return not (query.where or query.is_sliced or query.combinator or query.distinct or query.extra_tables)
