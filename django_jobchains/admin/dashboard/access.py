"""Who may see the dashboard, and the addresses of its pages."""

from collections.abc import Collection
from urllib.parse import urlencode

from django.contrib.admin import AdminSite
from django.http import HttpRequest
from django.urls import reverse

from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.models import Dashboard, Job, QueueState


class DashboardAccess(ReadOnlyAdmin):
    """Decides who may see the dashboard: a part of the admin class of jobs."""

    def has_dashboard_permission(self, request: HttpRequest) -> bool:
        """Return whether the user may view the dashboard, which counts only visible jobs."""
        return self.has_view_permission(request)

    def visible_queues(self, request: HttpRequest) -> Collection[str] | None:
        """Return the names of the queues that the dashboard shows to this user, or None for all.

        By default, users from whom jobs are hidden see none. Whether the user may change a queue is decided by
        ``may(request, "change_queuestate", queue)``.
        """
        return None if self.sees_all_rows(request) else ()


def sees_queue(access: DashboardAccess, request: HttpRequest, name: str) -> bool:
    shown = access.visible_queues(request)
    return shown is None or name in shown


def may_change_queue(access: DashboardAccess, request: HttpRequest, name: str) -> bool:
    return sees_queue(access, request, name) and access.may(request, "change_queuestate", QueueState(name=name))


def access_of(site: AdminSite) -> DashboardAccess | None:
    """Return the admin class of jobs on a site, if it can show a dashboard."""
    admin = site.get_model_admin(Job) if site.is_registered(Job) else None
    return admin if isinstance(admin, DashboardAccess) else None


def page_url(site: AdminSite, request: HttpRequest, kind: str = "", name: str = "") -> str:
    """Return the URL of the dashboard, or of the page of a "type" or "queue", or "" if the user may not view it."""
    access = access_of(site)
    if access is None or not (site.is_registered(Dashboard) and access.has_dashboard_permission(request)):
        return ""
    if kind == "queue" and not sees_queue(access, request, name):
        return ""
    address = reverse(f"admin:django_jobchains_dashboard_{kind or 'changelist'}", current_app=site.name)
    return f"{address}?{urlencode({'name': name})}" if kind else address
