"""What templates of the admin ask for that Django's own views show."""

from typing import Any

from django import template
from django.contrib.admin.sites import all_sites
from django.http import HttpRequest

from django_jobchains.admin.dashboard import Dashboard, Dashboards, TooSlow
from django_jobchains.models import Job

register = template.Library()


@register.simple_tag(takes_context=True)
def jobchains_dashboard(context: dict[str, Any]) -> Dashboard | TooSlow | None:
    """The dashboard, for a page of the site itself; None for who may not view it, and on a site without it."""
    request: HttpRequest = context["request"]
    page = _dashboards(getattr(request, "current_app", ""))
    return page.dashboard(request) if page and page.has_dashboard_permission(request) else None


def _dashboards(site_name: str) -> Dashboards | None:
    """That of the site that is looked at: the class a project put in its place has a say in who views what."""
    for site in all_sites:
        if site.name == site_name and site.is_registered(Job):
            page = site.get_model_admin(Job)
            return page if isinstance(page, Dashboards) else None
    return None
