"""The filters of the lists, which all use an index."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from django.contrib import messages
from django.contrib.admin import SimpleListFilter
from django.contrib.admin.views.main import ChangeList
from django.db.models import F
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.base import TimeLimitExceeded, parse_uuid, time_limit
from django_jobchains.admin.visibility import Visibility, has_own_view_permission
from django_jobchains.db.keyset import Unindexed
from django_jobchains.models import QUEUE_LENGTH, SCHEDULE_NAME_LENGTH, TYPE_NAME_LENGTH, Chain, Job, Schedule
from django_jobchains.models.jobs import ShownStatus
from django_jobchains.statuses import Status
from django_jobchains.store import get_store
from django_jobchains.text.humanize import number

#: The number of schedules that chains can be filtered by.
MAX_SCHEDULES = 500
#: The number up to which the rows of each status are counted, and the time limit of each count.
MAX_COUNTED = 100
COUNT_SECONDS = 0.05
#: The characters that a message shows of the value in a URL.
MAX_SHOWN_VALUE = 100


class ChoiceFilter(SimpleListFilter):
    """Filters by one of a few values. For any other value in the URL, the list is empty, with a message.

    The ``COUNTED`` values are shown with the number of their rows: at most ``MAX_COUNTED`` of them are counted, and
    only if nothing else narrows the list, so that the numbers cost little.
    """

    options: ClassVar[Sequence[tuple[str, Any]]]
    #: Values whose rows an index finds, or that are few.
    COUNTED: ClassVar[Sequence[str]] = ()

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self._checks_each_row = has_own_view_permission(model_admin) and not model_admin.sees_all_rows(request)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(self.options)

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if value is None:
            return None
        if value not in dict(self.lookup_choices):
            return no_rows(request, queryset, self)
        return self.narrowed(queryset, value)

    def narrowed(self, queryset: Any, value: str) -> Any:
        """Return the rows with this value."""
        raise NotImplementedError

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        all_, *choices = super().choices(changelist)
        yield all_
        counts = self._counts(changelist)
        for choice, (value, _label) in zip(choices, self.lookup_choices, strict=True):
            yield {**choice, "display": f"{choice['display']} ({counts[value]})"} if value in counts else choice

    def _counts(self, changelist: ChangeList) -> dict[str, str]:
        rows: Any = changelist.root_queryset
        others: list[Any] = [spec for spec in changelist.filter_specs if spec is not self]
        # Filters may also be the project's own.
        values = [spec.value() if isinstance(spec, SimpleListFilter) else spec.used_parameters for spec in others]
        if not self.COUNTED or changelist.query or any(values) or self._checks_each_row:
            return {}
        counts: dict[str, str] = {}
        with suppress(TimeLimitExceeded), time_limit(rows.db, COUNT_SECONDS):
            for value in self.COUNTED:
                count = self.narrowed(rows, value).order_by()[: MAX_COUNTED + 1].count()
                counts[value] = number(min(count, MAX_COUNTED), is_lower_bound=count > MAX_COUNTED)
        return counts


def no_rows(request: HttpRequest, queryset: Any, by: SimpleListFilter) -> Any:
    """Return no rows, because the value of a filter is invalid, and show a message."""
    names = {"filter": capfirst(by.title), "value": (by.value() or "")[:MAX_SHOWN_VALUE]}
    messages.warning(request, gettext("%(filter)s: no row can have the value “%(value)s”.") % names)
    return queryset.none()


class VisibilityFilter(SimpleListFilter):
    """Filters by what may be hidden from the user."""

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        self.visibility: Visibility = model_admin.visibility(request)
        super().__init__(request, params, model, model_admin)


class StatusFilter(ChoiceFilter):
    """Filters by a status as it is shown, or by all statuses of incomplete rows."""

    title = _("status")
    parameter_name = "status"
    INCOMPLETE = "incomplete"
    options = ((INCOMPLETE, _("incomplete")), *ShownStatus.choices)
    #: An index finds rows with these statuses. Those of the last one are searched among the pending ones.
    COUNTED = (Status.BLOCKED, Status.PENDING, Status.RUNNING, Status.FAILED, Status.CANCELLED, ShownStatus.SCHEDULED)

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        """Return the statuses that chains or jobs can have: only a job continues with another one."""
        return [option for option in self.options if model_admin.model is Job or option[0] != ShownStatus.CONTINUED]

    def narrowed(self, queryset: Any, value: str) -> Any:
        if value == self.INCOMPLETE:
            return queryset.incomplete()
        if value == Status.COMPLETED:
            # Most rows are completed. With several types, their pages are merged from one page of each type, while
            # ``with_status`` reads all rows with the status once.
            return queryset.filter(Unindexed(F("status"), value))
        return queryset.with_status(value)


class NameFilter(VisibilityFilter):
    """Filters by a full name."""

    max_length: ClassVar[int]

    def names(self, request: HttpRequest, model_admin: Any) -> Any:
        """Return the names to choose from."""
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = {*self.names(request, model_admin), *filter(None, [self.value()])}
        return [(name, name) for name in sorted(names)]

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if not value:
            return None
        if "\0" in value or len(value) > self.max_length:
            return no_rows(request, queryset, self)
        return self.narrowed(queryset, value)

    def narrowed(self, queryset: Any, name: str) -> Any:
        """Return the rows with this name."""
        raise NotImplementedError


class TypeFilter(NameFilter):
    title = _("type")
    parameter_name = "type"
    max_length = TYPE_NAME_LENGTH

    def names(self, request: HttpRequest, model_admin: Any) -> Any:
        return model_admin.type_names(request)

    def narrowed(self, queryset: Any, name: str) -> Any:
        return queryset.of_type(name)


class QueueFilter(NameFilter):
    """Filters jobs by their queue, and chains by the queue of their visible current job."""

    title = _("queue")
    parameter_name = "queue"
    max_length = QUEUE_LENGTH

    def names(self, request: HttpRequest, model_admin: Any) -> Any:
        return model_admin.queue_names(request)

    def narrowed(self, queryset: Any, name: str) -> Any:
        rows = queryset.in_queue(name)
        return self.visibility.related_to(Job, rows, "current_job_id") if queryset.model is Chain else rows


class ChainTypeFilter(TypeFilter):
    """Filters jobs by the type that their visible chain starts with."""

    title = _("chain type")
    parameter_name = "chain_type"

    def names(self, request: HttpRequest, model_admin: Any) -> Any:
        return self.visibility.chain_type_names()

    def narrowed(self, queryset: Any, name: str) -> Any:
        return self.visibility.related_to(Chain, queryset.of_chain_type(name), "chain_id")


class CreatedFilter(ChoiceFilter):
    """Filters by the time of creation, up to now by the database's clock."""

    title = _("creation time")
    parameter_name = "created"
    options = (
        ("hour", _("in the past hour")),
        ("day", _("in the past 24 hours")),
        ("week", _("in the past 7 days")),
        ("month", _("in the past 30 days")),
    )
    SECONDS: ClassVar = {"hour": 3_600, "day": 86_400, "week": 7 * 86_400, "month": 30 * 86_400}

    def narrowed(self, queryset: Any, value: str) -> Any:
        return queryset.created_between(get_store().stats.time_ago(self.SECONDS[value]), None)


class RootFilter(VisibilityFilter):
    """Hides chains that are blockers, which are usually parts of another chain.

    It is not offered to users from whom rows are hidden, because it would reveal that a hidden job waits for a chain.
    """

    title = _("use as a blocker")
    parameter_name = "roots"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        is_offered = self.visibility.sees_all(Chain) and self.visibility.sees_all(Job)
        return [("1", _("not a blocker"))] if is_offered else []

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        return queryset.roots() if self.value() == "1" else None


class BlockedByFilter(VisibilityFilter):
    """Filters by a visible chain that rows wait or waited for. Other pages link to it."""

    title = _("blocker")
    parameter_name = "blocked_by"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        value = self.value()
        return [(value, value)] if value else []

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if not value:
            return None
        blocker = parse_uuid(value)
        if blocker is None:
            return no_rows(request, queryset, self)
        if self.visibility.hidden_chains([blocker]):
            return queryset.none()
        return queryset.blocked_by(blocker)


class ScheduleFilter(NameFilter):
    """Filters chains by the schedule that they come from. The pages of schedules link to it."""

    title = _("schedule")
    parameter_name = "schedule"
    max_length = SCHEDULE_NAME_LENGTH

    def names(self, request: HttpRequest, model_admin: Any) -> Any:
        rows = self.visibility.rows(Schedule).order_by("name").defer("input", "last_error")
        return [schedule.name for schedule in self.visibility.seen(rows[:MAX_SCHEDULES])]

    def narrowed(self, queryset: Any, name: str) -> Any:
        return queryset.of_schedule(name)


CHAIN_FILTERS: tuple[type[SimpleListFilter], ...] = (
    StatusFilter,
    TypeFilter,
    QueueFilter,
    CreatedFilter,
    ScheduleFilter,
    RootFilter,
    BlockedByFilter,
)
JOB_FILTERS: tuple[type[SimpleListFilter], ...] = (
    StatusFilter,
    TypeFilter,
    ChainTypeFilter,
    QueueFilter,
    CreatedFilter,
    BlockedByFilter,
)
