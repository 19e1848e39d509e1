"""The history of a chain: what people did to it, and to any of its jobs."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.contrib.admin.views.main import PAGE_VAR
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse

from django_jobchains.admin.addresses import uuid_of
from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.admin.visibility import LARGE, Visibility
from django_jobchains.models import Chain, Job

#: Of a longer chain the entries of its last jobs are shown.
MOST_JOBS = 1_000
ENTRIES_ON_PAGE = 100


class ChainHistory(ReadOnlyAdmin):
    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Django's page, which knows the entries of the chain alone."""
        chain_id, visibility = uuid_of(object_id), self.visibility(request)
        shown = _page(request, chain_id, visibility) if chain_id and visibility.chains([chain_id]) else {}
        return super().history_view(request, object_id, {**shown, **(extra_context or {})})


def _page(request: HttpRequest, chain_id: UUID, visibility: Visibility) -> dict[str, Any]:
    """What Django's template asks for."""
    paginator = Paginator(_entries(chain_id, visibility), ENTRIES_ON_PAGE)
    page = paginator.get_page(request.GET.get(PAGE_VAR, 1))
    return {
        "action_list": page,
        "page_range": paginator.get_elided_page_range(page.number),
        "pagination_required": paginator.num_pages > 1,
    }


def _entries(chain_id: UUID, visibility: Visibility) -> QuerySet[LogEntry]:
    """Return what was done to the chain and to its visible jobs.

    The log may be in another database than the jobs, whose ids are read first.
    """
    jobs = visibility.rows(Job).filter(chain_id=chain_id).order_by("-chain_index").defer(*LARGE)[:MOST_JOBS]
    ids: Sequence[str] = [str(job.pk) for job in visibility.seen(jobs)]
    of_chain = Q(content_type=get_content_type_for_model(Chain), object_id=str(chain_id))
    of_jobs = Q(content_type=get_content_type_for_model(Job), object_id__in=ids)
    return (
        LogEntry.objects.filter(of_chain | of_jobs).select_related("user", "content_type").order_by("action_time", "pk")
    )
