"""Visible rows among the rows of a rival, and admin sites that hide those in each way that a project can.

Every row of the rival contains the word "rival": a page leaks if it contains that word or the id of a hidden row.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from django.contrib.admin import AdminSite
from django.db.models import Q
from django.urls import path

from django_jobchains.admin import ChainAdmin, DashboardAdmin, JobAdmin
from django_jobchains.models import Chain, Dashboard, FailedAttempt, Job, JobBlocker, LogLine
from tests.admin import rows
from tests.admin.browsing import PERMISSIONS

OWN, RIVAL = "shop.own", "rival.type"
#: A key and the start of ids that rows of both have.
SHARED_KEY, SHARED_START = "shared-key", "abcdef12"


class _ByQuery:
    def entry_types(self, request):
        """Offer no types, because those do not depend on rows."""
        return {}

    def get_queryset(self, request):
        return super().get_queryset(request).exclude(type_name__startswith="rival.")


class _ByRow:
    def entry_types(self, request):
        return {}

    def has_view_permission(self, request, obj=None):
        return super().has_view_permission(request, obj) and (obj is None or not obj.type_name.startswith("rival."))


def _urls(name, mixin):
    """Return the URLs of a site whose classes hide rows."""
    site = AdminSite(name)
    for model, admin_class in ((Chain, ChainAdmin), (Job, JobAdmin)):
        site.register(model, type(f"{mixin.__name__}{admin_class.__name__}", (mixin, admin_class), {}))
    site.register(Dashboard, DashboardAdmin)
    return (path("admin/", site.urls),)


BY_QUERY, BY_ROW = "by get_queryset", "by has_view_permission"
SITES = {BY_QUERY: _urls("by_query", _ByQuery), BY_ROW: _urls("by_row", _ByRow)}

ACTIONS = (*sorted({*PERMISSIONS.values()}), "enqueue_job", "change_queuestate")
PEOPLE = {
    "views": ("view_chain", "view_job"),
    "views payloads": ("view_chain", "view_job", "view_payload"),
    "views chains, may do all": ("view_chain", "view_payload", *ACTIONS),
    "views jobs, may do all": ("view_job", "view_payload", *ACTIONS),
    "may do all": ("view_chain", "view_job", "view_payload", *ACTIONS),
}
each_person = pytest.mark.parametrize(
    "person", [pytest.param(name, marks=() if name == "may do all" else pytest.mark.slow) for name in PEOPLE]
)


def _fill_with_rival(job):
    """Write "rival" into everything that a job, its handler and its worker store."""
    fields = {"input": {"x": "rival"}, "context": {"x": "rival"}, "queue": "rival-queue"}
    Job.objects.filter(pk=job.pk).update(**fields, last_error="RivalError: rival", leased_by="rival:1:a")
    LogLine.objects.bulk_create([rows.line(job, text="rival", fields={"x": "rival"})])
    rows.progress(job, text="rival")
    error = {"error": "RivalError: rival", "traceback": "Traceback\nRivalError: rival", "worker": "rival:1:a"}
    rows.attempt(job, **error).save()


def own(status="pending", **fields):
    return rows.chain(1, status, OWN, **fields)


def rival(status="pending", steps=1, key="rival-key", **fields):
    jobs = rows.chain(steps, status, RIVAL, deduplication_key=key, **fields)
    Job.objects.filter(pk=jobs[0].pk).update(deduplication_key=key)
    for job in jobs:
        _fill_with_rival(job)
    return jobs


@dataclass
class World:
    """``plain`` is a visible chain that waits for chains of both owners, and which chains of both wait for.

    ``stepped`` has a hidden step in the middle, and ``ends_hidden`` is currently at a hidden step. ``inside`` is a
    visible job in a hidden chain.
    """

    plain: Job
    stepped: list
    ends_hidden: list
    inside: Job
    hidden_chain: Job
    hidden_job: Job
    hidden_ids: set = field(default_factory=set)

    def leaks(self, text):
        return [word for word in ("rival", *self.hidden_ids) if word in text.lower()]


def make_world():
    [plain] = own("blocked", deduplication_key=SHARED_KEY)
    rows.waits(plain, own("running"), rival("running"))
    rows.waits(own("blocked")[0], [plain])
    rows.waits(rival("blocked")[0], [plain])
    rival("failed", key=SHARED_KEY)
    stepped = rows.chain(3, "failed", OWN)
    ends_hidden = rows.chain(2, "failed", OWN)
    for hidden in (stepped[1], ends_hidden[1]):
        Job.objects.filter(pk=hidden.pk).update(type_name="rival.step")
        _fill_with_rival(hidden)
    outer, inside = rival("failed", steps=2)
    visible = {"type_name": OWN, "queue": "default", "input": 1, "context": None, "last_error": "x", "leased_by": None}
    Job.objects.filter(pk=inside.pk).update(**visible)
    FailedAttempt.objects.filter(job=inside).delete()
    LogLine.objects.filter(job=inside).delete()
    inside.reported_progress.delete()
    hidden = Job.objects.filter(type_name__startswith="rival.")
    ids = {str(id_) for id_ in hidden.values_list("pk", flat=True)} | {str(outer.pk)}
    return World(plain, stepped, ends_hidden, Job.objects.get(pk=inside.pk), outer, stepped[1], ids)


def state_for(verb):
    """Return the columns of a job that an action can change."""
    later = datetime.now(UTC) + timedelta(hours=1)
    return {"status": "failed" if verb == "retry" else "pending", "run_at": later}


def hidden_rows():
    """Return every column of every row of the rival."""
    of_rival = Job.objects.filter(Q(chain_type_name__startswith="rival.") | Q(type_name__startswith="rival."))
    links = JobBlocker.objects.filter(job__chain_type_name__startswith="rival.")
    return [list(rows.order_by("pk").values()) for rows in (of_rival, links)]


def everything_of(reply):
    return str(reply.content, "utf-8") + reply.headers.get("Location", "")
