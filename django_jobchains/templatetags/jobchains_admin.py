"""Template tags and filters of the pages of the admin.

Django imports this module for every template engine, also in a project without the admin.
"""

from typing import Any

from django import template
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from django_jobchains.text import humanize

register = template.Library()
for format_value in (humanize.number, humanize.age, humanize.ago, humanize.span, humanize.memory):
    register.filter(format_value)

# Not with ``expects_localtime``, which has no effect without ``USE_TZ``.
register.filter("clock_time", lambda time: humanize.clock_time(timezone.localtime(time)))
register.filter("exact_time", lambda time: humanize.exact_time(timezone.localtime(time)))


#: The states of workers and of pools.
STATES = {
    "stale": _("no heartbeat"),
    "stuck": _("stuck"),
    "stopping": _("stopping"),
    "maintenance": _("maintenance only"),
    "cannot_start": _("cannot start"),
    "in_threads": _("in threads"),
    "saturated": _("saturated"),
    "busy": _("busy"),
    "idle": _("idle"),
}
register.filter("state_text", lambda state: STATES[state])

LIMIT_KINDS = {"type": _("type"), "group": _("group"), "queue": _("queue"), "records": _("records")}
register.filter("limit_kind", lambda kind: LIMIT_KINDS[kind])


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
