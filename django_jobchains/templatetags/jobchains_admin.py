"""Template tags for pages of the admin that Django's own views render.

Django imports this module for every template engine, also in a project without the admin.
"""

from typing import TYPE_CHECKING, Any

from django import template
from django.http import HttpRequest
from django.utils.translation import gettext

from django_jobchains.models import Job
from django_jobchains.text import humanize

if TYPE_CHECKING:
    from django.contrib.admin import AdminSite

    from django_jobchains.admin.dashboard.views import Dashboard, DashboardAdmin, TooSlow

register = template.Library()
for format_value in (humanize.number, humanize.age, humanize.ago, humanize.span, humanize.memory):
    register.filter(format_value)


@register.filter
def state_text(state: str) -> str:
    """Return the state of a worker or of a pool in the active language."""
    texts = {
        "stale": gettext("no heartbeat"),
        "stuck": gettext("stuck"),
        "stopping": gettext("stopping"),
        "maintenance": gettext("maintenance only"),
        "cannot_start": gettext("cannot start"),
        "in_threads": gettext("in threads"),
        "saturated": gettext("saturated"),
        "busy": gettext("busy"),
        "idle": gettext("idle"),
    }
    return texts[state]


@register.simple_tag(takes_context=True)
def count(context: dict[str, Any], facts: Any, name: str) -> str:
    """Return a number of jobs or records, with a plus sign if counting stopped at the limit."""
    return str(context["dashboard"].overview.shown(facts, name))


@register.simple_tag(takes_context=True)
def jobchains_dashboard(context: dict[str, Any]) -> "Dashboard | TooSlow | None":
    """Return the dashboard for the index of the app, or None if the user may not view it or the site has none."""
    request: HttpRequest = context["request"]
    # Take the site from the URL: several sites can have the same name, but different rules for visibility.
    model_admin = _dashboard_admin(getattr(getattr(request.resolver_match, "func", None), "admin_site", None))
    is_shown = model_admin and model_admin.has_dashboard_permission(request)
    return model_admin.dashboard(request) if model_admin and is_shown else None


def _dashboard_admin(site: "AdminSite | None") -> "DashboardAdmin | None":
    """Return the admin class of jobs on a site, or None if it has no dashboard."""
    from django_jobchains.admin.dashboard.views import DashboardAdmin

    model_admin = site.get_model_admin(Job) if site and site.is_registered(Job) else None
    return model_admin if isinstance(model_admin, DashboardAdmin) else None
