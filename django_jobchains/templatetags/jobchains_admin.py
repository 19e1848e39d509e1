"""What templates of the admin ask for that Django's own views show."""

from typing import Any

from django import template
from django.contrib.admin import AdminSite
from django.http import HttpRequest

from django_jobchains.admin.dashboard import Dashboard, Dashboards, TooSlow
from django_jobchains.models import Job

register = template.Library()


@register.simple_tag(takes_context=True)
def jobchains_dashboard(context: dict[str, Any]) -> Dashboard | TooSlow | None:
    """The dashboard, for a page of the site itself; None for who may not view it, and on a site without it."""
    request: HttpRequest = context["request"]
    # The site itself, as its URLs have it: several sites may have the same name, and other rules for what is seen.
    page = _dashboards(getattr(getattr(request.resolver_match, "func", None), "admin_site", None))
    return page.dashboard(request) if page and page.has_dashboard_permission(request) else None


def _dashboards(site: AdminSite | None) -> Dashboards | None:
    """Return the class that a site has for jobs, which may be a project's own; None if it has no dashboard."""
    page = site.get_model_admin(Job) if site and site.is_registered(Job) else None
    return page if isinstance(page, Dashboards) else None
