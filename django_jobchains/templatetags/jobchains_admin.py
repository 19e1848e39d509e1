"""Template tags and filters of the pages of the admin.

Django imports this module for every template engine, also in a project without the admin.
"""

from typing import Any

from django import template
from django.utils import timezone
from django.utils.translation import gettext

from django_jobchains.text import humanize

register = template.Library()
for format_value in (humanize.number, humanize.age, humanize.ago, humanize.span, humanize.memory):
    register.filter(format_value)

# Not with ``expects_localtime``, which has no effect without ``USE_TZ``.
register.filter("clock_time", lambda time: humanize.clock_time(timezone.localtime(time)))
register.filter("exact_time", lambda time: humanize.exact_time(timezone.localtime(time)))


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


@register.filter
def limit_kind(kind: str) -> str:
    """Return the kind of a limit in the active language."""
    texts = {
        "type": gettext("type"),
        "group": gettext("group"),
        "queue": gettext("queue"),
        "records": gettext("records"),
    }
    return texts[kind]


@register.simple_tag(takes_context=True)
def count(context: dict[str, Any], facts: Any, name: str) -> str:
    """Return a number of jobs or records, with a plus sign if counting stopped at the limit."""
    return str(context["dashboard"].overview.shown(facts, name))


@register.simple_tag(takes_context=True)
def dashboard_url(context: dict[str, Any], kind: str = "", name: str = "") -> str:
    """Return the URL of the dashboard, or of the page of a "type" or "queue", or "" if the user may not view it."""
    from django_jobchains.admin.dashboard.access import page_url

    page_admin = context.get("page_admin")
    return page_url(page_admin.admin_site, context["request"], kind, name) if page_admin else ""
