"""The history of a chain includes the log entries of its jobs, and a job's includes the entries of its chain."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.admin.views.main import PAGE_VAR
from django.core.paginator import Paginator
from django.db.models import Model, Q
from django.http import HttpRequest, HttpResponse

from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.admin.urls import parse_uuid
from django_jobchains.admin.visibility import LARGE, Visibility
from django_jobchains.models import Chain, Job

#: The number of jobs, counted from the end of the chain, whose entries are shown.
MAX_JOBS = 1_000
ENTRIES_ON_PAGE = 100


class HistoryAdmin(ReadOnlyAdmin):
    """Base class for admin classes that add entries of related rows to Django's history page."""

    def entries(self, id_: UUID, visibility: Visibility) -> Q | None:
        """Return the condition for the log entries of a row, or None if the user may not see the row."""
        raise NotImplementedError

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        id_ = parse_uuid(object_id)
        entries = self.entries(id_, self.visibility(request)) if id_ else None
        shown = _page(request, entries) if entries else {}
        return super().history_view(request, object_id, {**shown, **(extra_context or {})})


class ChainHistoryAdmin(HistoryAdmin):
    """The history page of a chain, with the entries of its visible jobs."""

    def entries(self, id_: UUID, visibility: Visibility) -> Q | None:
        """Read the ids of the jobs first, because the log may be in another database."""
        if not visibility.chains([id_]):
            return None
        jobs = visibility.rows(Job).filter(chain_id=id_).order_by("-chain_index").defer(*LARGE)[:MAX_JOBS]
        return _of(Chain, [id_]) | _of(Job, [job.pk for job in visibility.seen(jobs)])


class JobHistoryAdmin(HistoryAdmin):
    """The history page of a job, with the entries of its chain, whose actions apply to the current job."""

    def entries(self, id_: UUID, visibility: Visibility) -> Q | None:
        job = visibility.jobs([id_]).get(id_)
        return None if job is None else _of(Job, [id_]) | _of(Chain, list(visibility.chains([job.chain_id])))


def _of(model: type[Model], ids: Sequence[UUID]) -> Q:
    return Q(content_type=get_content_type_for_model(model), object_id__in=[str(id_) for id_ in ids])


def _page(request: HttpRequest, entries: Q) -> dict[str, Any]:
    """Return the context for Django's template."""
    found = LogEntry.objects.filter(entries).select_related("user", "content_type").order_by("action_time", "pk")
    paginator = Paginator(found, ENTRIES_ON_PAGE)
    page = paginator.get_page(request.GET.get(PAGE_VAR, 1))
    return {
        "action_list": page,
        "page_range": paginator.get_elided_page_range(page.number),
        "pagination_required": paginator.num_pages > 1,
    }
