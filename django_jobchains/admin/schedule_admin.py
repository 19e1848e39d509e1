"""The admin of schedules: the list, the page of a schedule with its chains and next ticks, and the actions."""

import re
from collections.abc import Collection, Sequence
from typing import Any, ClassVar
from zoneinfo import ZoneInfoNotFoundError

from django.contrib import admin
from django.contrib.admin.models import DELETION
from django.db import transaction
from django.db.models import Model, Q
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dates import WEEKDAYS
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext_lazy
from django.utils.translation import gettext_lazy as _

from django_jobchains import schedules
from django_jobchains.admin.actions.action import NOT_THERE, Action, ActionResult
from django_jobchains.admin.actions.confirmed import ActionRow, ConfirmedActions
from django_jobchains.admin.actions.enqueue import acting
from django_jobchains.admin.base import ReadOnlyAdmin
from django_jobchains.admin.detail import queries
from django_jobchains.admin.detail.steps import Presenter
from django_jobchains.admin.detail.views import DetailAdmin, entries_of
from django_jobchains.admin.display import Timestamps, badge
from django_jobchains.admin.lists.changelists import ERROR_LENGTH, Columns, ListAdmin, Rows, named
from django_jobchains.admin.lists.filters import ChoiceFilter
from django_jobchains.admin.lists.search import SearchResult
from django_jobchains.admin.visibility import Visibility, with_current_jobs
from django_jobchains.exceptions import JobchainsError, ScheduleDeclaredInCode, ScheduleNotFound
from django_jobchains.models import Chain, Schedule
from django_jobchains.models.payload_fields import text_start
from django_jobchains.text.humanize import exact_time, number, span

#: The columns that may be large.
LARGE = ("input", "last_error")
#: The last chains on the page of a schedule, and how many are read where ``has_view_permission`` hides some of them.
MAX_CHAINS = 20
MAX_CHAINS_READ = 500
IN_CODE = _("declared in code, change or remove it there")


def state_badge(schedule: Schedule) -> SafeString:
    return badge(schedule.state.value, schedule.state.label)


def rule_text(schedule: Schedule) -> str:
    """Return the interval or the cron expression."""
    if schedule.every_seconds is None:
        return schedule.cron or ""
    return gettext("every %(time)s") % {"time": span(schedule.every_seconds)}


def cron_in_words(cron: str) -> str:
    """Describe a common cron expression in the active language. Return an empty string for others."""
    for pattern, text in _CRON_TEXTS:
        if found := re.fullmatch(pattern, cron.upper()):
            words: dict[str, Any] = found.groupdict()
            for name in {"first", "last"} & words.keys():
                # Sunday is 0 and 7.
                day = words[name]
                words[name] = WEEKDAYS[_DAYS.index(day) if day in _DAYS else (int(day) - 1) % 7]
            if "hour" in words:
                words["time"] = f"{int(words['hour']):02}:{int(words['minute']):02}"
            return str(text % words)
    return ""


_DAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_TIME, _DAY = r"(?P<minute>\d+) (?P<hour>\d+)", "|".join(("[0-7]", *_DAYS))
#: Patterns of cron expressions, and their texts.
_CRON_TEXTS = (
    (r"\* \* \* \* \*", _("every minute")),
    # Other intervals begin anew at each hour.
    (r"\*/(?P<step>[2-6]|10|12|15|20|30) \* \* \* \*", _("every %(step)s minutes")),
    (r"(?P<minute>\d+) \* \* \* \*", _("every hour, at minute %(minute)s")),
    (rf"{_TIME} \* \* \*", _("every day at %(time)s")),
    (rf"{_TIME} (?P<day>\d+) \* \*", _("on day %(day)s of every month at %(time)s")),
    (rf"{_TIME} \* \* (?P<first>{_DAY})", _("every %(first)s at %(time)s")),
    (rf"{_TIME} \* \* (?P<first>{_DAY})-(?P<last>{_DAY})", _("%(first)s to %(last)s at %(time)s")),
)


# The list


class ScheduleColumns(Columns):
    """The columns of schedules. ``ScheduleListAdmin.mark`` sets ``last_chain`` on the schedules of a page."""

    names = ("state", "name", "rule", "next_tick", "last_tick")
    optional = frozenset({"next_tick", "last_tick"})

    @admin.display(description=_("name"), ordering="name")
    def name(self, schedule: Schedule) -> SafeString:
        return named(self._link("schedule", schedule.name), self._link("type", schedule.type_name))

    @admin.display(description=_("state"))
    def state(self, schedule: Schedule) -> SafeString:
        """Return the state, and the first line of the error."""
        payloads, state = self._visibility.payloads(schedule), schedule.state
        return payloads.status_html(state.value, state.label, schedule.error_start)  # type: ignore[attr-defined]  # annotated

    @admin.display(description=_("rule"))
    def rule(self, schedule: Schedule) -> SafeString | str:
        """Return the rule, and the time zone of a cron expression."""
        return named(rule_text(schedule), schedule.timezone if schedule.cron else "")

    @admin.display(description=_("next tick"))
    def next_tick(self, schedule: Schedule) -> SafeString | str:
        return self._timestamps.timestamp(schedule.due_at)

    @admin.display(description=_("last tick"))
    def last_tick(self, schedule: Schedule) -> SafeString | str:
        """Return the time of the last tick, and the status of the last chain with a link to it."""
        time, link = self._timestamps.timestamp(schedule.last_tick_at), schedule.last_chain  # type: ignore[attr-defined]
        if link is None:
            return time
        return format_html('{} <a href="{}">{}</a>', time, link.url, badge(link.status.value, link.status.label))


class ScheduleStateFilter(ChoiceFilter):
    title = _("state")
    parameter_name = "state"
    options = Schedule.State.choices
    COUNTED = Schedule.State.values

    def narrowed(self, queryset: Any, value: str) -> Any:
        return queryset.in_state(value)


class ScheduleSourceFilter(ChoiceFilter):
    title = _("source")
    parameter_name = "source"
    options = Schedule.Source.choices
    COUNTED = Schedule.Source.values

    def narrowed(self, queryset: Any, value: str) -> Any:
        return queryset.filter(source=value)


class ScheduleListAdmin(ListAdmin):
    """The changelist of schedules, by name."""

    columns = ScheduleColumns
    list_filter = (ScheduleStateFilter, ScheduleSourceFilter)
    ordering = ("name",)
    large_columns = LARGE
    search_help_text = _("Search for a part of a name.")

    def searched(self, request: HttpRequest, rows: Rows, term: str) -> SearchResult:
        return SearchResult(rows.filter(name__icontains=term) if term else rows)

    def mark(self, request: HttpRequest, rows: Sequence[Schedule]) -> None:
        visibility = self.visibility(request)
        presenter = Presenter(visibility)
        chains = visibility.chains({row.last_chain_id for row in rows if row.last_chain_id})
        for row in rows:
            chain = chains.get(row.last_chain_id) if row.last_chain_id else None
            row.last_chain = presenter.link(chain) if chain else None  # type: ignore[attr-defined]

    def shown(self, rows: Any) -> Rows:
        found: Rows = rows.with_orphans().defer(*LARGE)
        return found.annotate(error_start=text_start("last_error", ERROR_LENGTH))


# The actions


class ScheduleAction(Action):
    """An action that users perform on schedules, which are their own targets."""

    statuses = ()
    permission: ClassVar[str]
    #: Whether ``perform`` is called for each schedule separately, so that an error does not affect the others.
    is_one_by_one: ClassVar[bool] = True

    def refusal_of(self, request: HttpRequest, target: Schedule) -> Any:
        return ""

    def perform(self, request: HttpRequest, *names: str) -> None:
        """Change the schedules in the caller's transaction."""
        raise NotImplementedError


class RunScheduleAction(ScheduleAction):
    name = "run_now"
    label = _("Run now")
    permission = "run_schedule"
    help_text = _("Enqueues a chain for each schedule now, even if it is paused. The next ticks do not change.")
    success_text = ngettext_lazy("%(count)s chain enqueued.", "%(count)s chains enqueued.", "number")
    log_text = _("Run now.")

    def perform(self, request: HttpRequest, *names: str) -> None:
        for name in names:
            with acting(request):
                schedules.run_now(name)


class PauseAction(ScheduleAction):
    name = "pause"
    label = _("Pause")
    permission = "pause_schedule"
    is_one_by_one = False
    help_text = _(
        "A paused schedule does not fire. The ticks of that time do not count as missed. Chains that it has started "
        "continue."
    )
    success_text = ngettext_lazy("%(count)s schedule paused.", "%(count)s schedules paused.", "number")
    log_text = _("Paused.")

    def refusal_of(self, request: HttpRequest, target: Schedule) -> Any:
        return _("already paused") if target.is_paused else ""

    def perform(self, request: HttpRequest, *names: str) -> None:
        schedules.pause(*names)


class ResumeAction(ScheduleAction):
    name = "resume"
    label = _("Resume")
    permission = "pause_schedule"
    is_one_by_one = False
    help_text = _("Lets schedules fire again, from the next tick on.")
    success_text = ngettext_lazy("%(count)s schedule resumed.", "%(count)s schedules resumed.", "number")
    log_text = _("Resumed.")

    def refusal_of(self, request: HttpRequest, target: Schedule) -> Any:
        return "" if target.is_paused else _("not paused")

    def perform(self, request: HttpRequest, *names: str) -> None:
        schedules.resume(*names)


class DeleteScheduleAction(ScheduleAction):
    name = "delete"
    label = _("Delete")
    permission = "delete_schedule"
    help_text = _("Deletes schedules that do not come from code, or that are orphaned. Their chains stay.")
    success_text = ngettext_lazy("%(count)s schedule deleted.", "%(count)s schedules deleted.", "number")
    log_text = _("Deleted.")
    is_dangerous = True
    flag = DELETION

    def refusal_of(self, request: HttpRequest, target: Schedule) -> Any:
        return IN_CODE if target.source == Schedule.Source.CODE and not target.is_orphaned else ""

    def perform(self, request: HttpRequest, *names: str) -> None:
        for name in names:
            schedules.delete(name)


SCHEDULE_ACTIONS: tuple[ScheduleAction, ...] = (
    RunScheduleAction(),
    PauseAction(),
    ResumeAction(),
    DeleteScheduleAction(),
)


class ScheduleActionAdmin(ConfirmedActions, ReadOnlyAdmin):
    """Actions on schedules."""

    row_actions = SCHEDULE_ACTIONS

    def visible_targets(self, request: HttpRequest, keys: Collection[str]) -> list[Schedule]:
        rows: Any = self.get_queryset(request)
        return self.visibility(request).seen(rows.with_orphans().filter(pk__in=keys).defer(*LARGE))

    def is_action_allowed(self, request: HttpRequest, action: Any, target: Schedule | None = None) -> bool:
        return self.may(request, action.permission, target)

    def action_headings(self) -> list[Any]:
        return [_("Schedule"), _("State"), _("Action")]

    def action_row(self, target: Schedule, refusal: Any) -> ActionRow:
        url = self.page_url("change", target.name)
        return ActionRow(target.name, url, target.state.value, target.state.label, refusal)

    def perform_action(
        self, request: HttpRequest, action: Any, targets: Sequence[Schedule], form: Any, result: ActionResult
    ) -> list[Model]:
        # In the order in which the store locks schedules, which avoids deadlocks.
        targets = sorted(targets, key=lambda target: target.name)
        changed: list[Model] = []
        for group in [[target] for target in targets] if action.is_one_by_one else [targets]:
            names = [target.name for target in group]
            try:
                with transaction.atomic(using=self.action_database(request)):
                    action.perform(request, *names)
            except JobchainsError as error:
                result.skip(reason_of(error), names)
            else:
                changed += group
        return changed


def reason_of(error: JobchainsError) -> str:
    """Return a translated reason for the errors that other users can cause."""
    if isinstance(error, ScheduleNotFound):
        return str(NOT_THERE)
    return str(IN_CODE if isinstance(error, ScheduleDeclaredInCode) else error)


# The page of a schedule


class ScheduleDetailAdmin(ScheduleActionAdmin, DetailAdmin):
    """The page of a schedule."""

    def key_of(self, text: str) -> str | None:
        return text if text.isprintable() else None

    def row(self, request: HttpRequest, key: Any) -> Schedule | None:
        rows: Any = self.get_queryset(request)
        found = queries.texts(rows.with_orphans(), queries.MAX_STEP_PAYLOAD, "input").filter(pk=key).first()
        schedule: Schedule | None = found
        return schedule

    def log_entries(self, key: Any, visibility: Visibility) -> Q | None:
        return entries_of(Schedule, [key])

    def details(self, request: HttpRequest, found: Schedule) -> dict[str, Any]:
        visibility = self.visibility(request)
        presenter = Presenter(visibility)
        payloads, times = visibility.payloads(found), presenter.timestamps
        ticks, problem = next_ticks(found.name, times)
        error, error_text = payloads.error_line(found.last_error), payloads.text(found.last_error)
        return {
            "title": gettext("Schedule %(name)s") % {"name": found.name},
            "schedule": found,
            "is_open": found.due_at is not None,
            "state": state_badge(found),
            "rule": rule_text(found),
            "words": cron_in_words(found.cron) if found.cron else "",
            "next_tick": times.timestamp(found.due_at),
            "last_tick": times.timestamp(found.last_tick_at),
            "paused": times.timestamp(found.paused_at),
            "failed": times.timestamp(found.last_error_at),
            "failed_tick": times.exact(found.next_tick_at),
            "created": times.timestamp(found.created_at),
            "jitter": span(found.jitter_seconds) if found.jitter_seconds else "",
            "max_catch_up": number(found.max_catch_up),
            "error": error,
            "error_text": None if error_text.text == error else error_text,
            "input": payloads.stored(found.input_text, found.input_size),  # type: ignore[attr-defined]  # annotated
            "ticks": ticks,
            "ticks_problem": problem,
            "own_zone": timezone.get_current_timezone_name(),
            "chains": chains_of(found, visibility, presenter),
            "actions": self.action_buttons(request, found),
        }


def next_ticks(name: str, times: Timestamps) -> tuple[list[tuple[Any, str, str]], str]:
    """Return the next ticks, each relative, in the schedule's time zone and in the user's, or why there are none."""
    try:
        ticks = schedules.next_ticks(name)
    except (ScheduleNotFound, ZoneInfoNotFoundError, ValueError) as error:  # no cronsim here, or another tzdata
        return [], str(error)
    shown = [(times.timestamp(tick), exact_time(tick), times.exact(tick)) for tick in ticks]
    return shown, ""


def chains_of(schedule: Schedule, visibility: Visibility, presenter: Presenter) -> list[dict[str, Any]]:
    """Return the last visible chains of a schedule, newest first."""
    rows: Any = visibility.rows(Chain)
    limit = MAX_CHAINS_READ if visibility.checks_each_row(Chain) else MAX_CHAINS
    found: Rows = with_current_jobs(rows.of_schedule(schedule.name))  # type: ignore[assignment]
    page = found.page(limit=limit)
    return [
        {
            "link": presenter.link(chain),
            "tick": presenter.timestamps.exact(chain.scheduled_for),
            "created": presenter.timestamps.timestamp(chain.created_at),
            "duration": presenter.timestamps.duration(chain),
        }
        for chain in visibility.seen(page.items)[:MAX_CHAINS]
    ]
