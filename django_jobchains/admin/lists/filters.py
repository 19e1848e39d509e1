"""The filters of the lists, which all use an index."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from uuid import UUID

from django.contrib.admin import SimpleListFilter
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.db.models import F
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_jobchains.admin.visibility import Visibility
from django_jobchains.db.keyset import Unindexed
from django_jobchains.models import QUEUE_LENGTH, SCHEDULE_NAME_LENGTH, TYPE_NAME_LENGTH, Chain, Job, Schedule
from django_jobchains.statuses import Status
from django_jobchains.store import get_store

#: The number of schedules that chains can be filtered by.
MAX_SCHEDULES = 500


class ChoiceFilter(SimpleListFilter):
    """Filters by one of a few values. Any other value in the URL is an error, for which Django shows the whole list."""

    options: ClassVar[Sequence[tuple[str, Any]]]

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:
        return list(self.options)

    def queryset(self, request: HttpRequest, queryset: Any) -> Any:
        value = self.value()
        if value is None:
            return None
        if value not in dict(self.options):
            raise IncorrectLookupParameters
        return self.narrowed(queryset, value)

    def narrowed(self, queryset: Any, value: str) -> Any:
        """Return the rows with this value."""
        raise NotImplementedError


class StatusFilter(ChoiceFilter):
    """Filters by one status, or by all statuses of unfinished rows."""

    title = _("status")
    parameter_name = "status"
    OPEN = "open"
    options = ((OPEN, _("unfinished")), *Status.choices)

    def narrowed(self, queryset: Any, value: str) -> Any:
        if value == self.OPEN:
            return queryset.incomplete()
        if value == Status.COMPLETED:
            # Most rows are completed. With several types, their pages are merged from one page of each type, while
            # ``with_status`` reads all rows with the status once.
            return queryset.filter(Unindexed(F("status"), value))
        return queryset.with_status(value)


class VisibilityFilter(SimpleListFilter):
    """Filters by what may be hidden from the user."""

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        self.visibility: Visibility = model_admin.visibility(request)
        super().__init__(request, params, model, model_admin)


class NameFilter(VisibilityFilter):
    """Filters by a full name, with a select field because there may be hundreds of names."""

    template = "admin/django_jobchains/select_filter.html"
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
            raise IncorrectLookupParameters
        return self.narrowed(queryset, value)

    def narrowed(self, queryset: Any, name: str) -> Any:
        """Return the rows with this name."""
        raise NotImplementedError

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        """Return the options for the template, with the other parameters that the form has to send."""
        kept = [(name, value) for name, value in changelist.params.items() if name != self.parameter_name]
        yield {"selected": not self.value(), "value": "", "display": _("All"), "kept": kept}
        for name, _name in self.lookup_choices:
            yield {"selected": name == self.value(), "value": name, "display": name}


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
        try:
            blocker = UUID(value)
        except ValueError as error:
            raise IncorrectLookupParameters from error
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
