"""Visible rows among the rows of a rival, and admin sites that hide those in each way that a project can.

Every row of the rival contains the word "rival": a page leaks if it contains that word or the id of a hidden row.
"""

from dataclasses import dataclass, field
from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.auth.models import Permission, User
from django.db.models import QuerySet
from django.http import HttpRequest
from django.test import Client
from django.urls import path

from django_jobchains.admin import ChainAdmin, JobAdmin
from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.models import Chain, FailedAttempt, Job, JobBlocker, LogLine
from tests.admin.pages import rows

OWN, RIVAL = "shop.own", "rival.type"
#: A key and the start of ids that rows of both have.
SHARED_KEY, SHARED_START = "shared-key", "abcdef12"
BY_QUERY, BY_ROW = "by get_queryset", "by has_view_permission"
WAYS = (BY_QUERY, BY_ROW)


class _Own(ReadOnlyAdmin):
    """Offers only types that the user may start, which do not depend on rows."""

    def entry_types(self, request: HttpRequest) -> Any:
        return {}


class _ByQuery(_Own):
    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).exclude(type_name__startswith="rival.")


class _ByRow(_Own):
    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_view_permission(request, obj) and (obj is None or not obj.type_name.startswith("rival."))


class ChainsByQuery(_ByQuery, ChainAdmin):
    pass


class JobsByQuery(_ByQuery, JobAdmin):
    pass


class ChainsByRow(_ByRow, ChainAdmin):
    pass


class JobsByRow(_ByRow, JobAdmin):
    pass


def _site(name: str, chains: type[ChainAdmin], jobs: type[JobAdmin]) -> AdminSite:
    site = AdminSite(name)
    site.register(Chain, chains)
    site.register(Job, jobs)
    return site


SITES = {
    BY_QUERY: _site("by_query", ChainsByQuery, JobsByQuery),
    BY_ROW: _site("by_row", ChainsByRow, JobsByRow),
}


def urls(site: AdminSite) -> Any:
    """Return the value of ``ROOT_URLCONF`` for a site."""
    return (path("admin/", site.urls),)


ACTIONS = ("complete_job", "retry_job", "cancel_job", "run_job", "delete_chain", "enqueue_job", "change_queuestate")
PEOPLE: dict[str, tuple[str, ...]] = {
    "views": ("view_chain", "view_job"),
    "views payloads": ("view_chain", "view_job", "view_payload"),
    "views chains, may do all": ("view_chain", "view_payload", *ACTIONS),
    "views jobs, may do all": ("view_job", "view_payload", *ACTIONS),
    "may do all": ("view_chain", "view_job", "view_payload", *ACTIONS),
}


def browser(*permissions: str) -> Client:
    user = User.objects.create_user(f"user-{User.objects.count()}", is_staff=True)
    allowed = Permission.objects.filter(content_type__app_label="django_jobchains", codename__in=permissions)
    assert allowed.count() == len(permissions)
    user.user_permissions.set(allowed)
    client = Client()
    client.force_login(user)
    return client


def _fill_with_rival(job: Job) -> None:
    """Write "rival" into everything that a job, its handler and its worker store."""
    fields: dict[str, Any] = {"input": {"x": "rival"}, "context": {"x": "rival"}, "queue": "rival-queue"}
    Job.objects.filter(pk=job.pk).update(**fields, last_error="RivalError: rival", leased_by="rival:1:a")
    LogLine.objects.bulk_create([rows.line(job, text="rival", fields={"x": "rival"})])
    rows.progress(job, text="rival")
    error = {"error": "RivalError: rival", "traceback": "Traceback\nRivalError: rival", "worker": "rival:1:a"}
    rows.attempt(job, **error).save()


def own(status: str = "pending", **fields: Any) -> list[Job]:
    return rows.chain(1, status, OWN, **fields)


def rival(status: str = "pending", steps: int = 1, **fields: Any) -> list[Job]:
    jobs = rows.chain(steps, status, RIVAL, deduplication_key=fields.pop("key", "rival-key"), **fields)
    Job.objects.filter(pk=jobs[0].pk).update(deduplication_key=jobs[-1].deduplication_key)
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
    stepped: list[Job]
    ends_hidden: list[Job]
    inside: Job
    hidden_chain: Job
    hidden_job: Job
    hidden_ids: set[str] = field(default_factory=set)


def make_world() -> World:
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
    outer = rival("failed", steps=2)
    Job.objects.filter(pk=outer[1].pk).update(type_name=OWN, queue="default", input=1, context=None, last_error="x")
    Job.objects.filter(pk=outer[1].pk).update(leased_by=None)
    FailedAttempt.objects.filter(job=outer[1]).delete()
    LogLine.objects.filter(job=outer[1]).delete()
    outer[1].progress.delete()
    inside = Job.objects.get(pk=outer[1].pk)
    hidden = Job.objects.filter(type_name__startswith="rival.")
    ids = {str(id_) for id_ in hidden.values_list("pk", flat=True)} | {str(outer[0].pk)}
    return World(plain, stepped, ends_hidden, inside, outer[0], stepped[1], ids)


def hidden_rows() -> list[Any]:
    """Return every column of every row of the rival."""
    of_rival = Job.objects.filter(chain_type_name__startswith="rival.") | Job.objects.filter(
        type_name__startswith="rival."
    )
    links = JobBlocker.objects.filter(job__chain_type_name__startswith="rival.")
    return [list(rows.order_by("pk").values()) for rows in (of_rival, links)]
