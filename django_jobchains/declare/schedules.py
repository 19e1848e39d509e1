"""Schedules: the arguments that declare them, how these are checked, and when a schedule ticks.

Cron expressions are parsed by cronsim, by the rules of Debian's cron (the extra ``schedules``).
"""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cached_property, partial
from itertools import islice
from typing import Any, Literal, TypedDict, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from django.conf import settings as django_settings

from django_jobchains.declare.job_types import JobType
from django_jobchains.exceptions import InvalidInput, InvalidSchedule, JobchainsError
from django_jobchains.payloads.types import name_of
from django_jobchains.values import PRIORITY, QUEUE, SCHEDULE_NAME, Choice, Count, Duration, DurationLike, Value

Overlap = Literal["allow", "skip", "queue"]
OnMissed = Literal["run_once", "skip", "run_all"]

#: The length of the column.
CRON_LENGTH = 200


class ScheduleOptionsWithoutInput(TypedDict, total=False):
    cron: str | None
    every: DurationLike | None
    timezone: str | tzinfo | None
    overlap: Overlap
    on_missed: OnMissed
    max_catch_up: int
    jitter: DurationLike | None
    queue: str | None
    priority: int | None


class ScheduleOptions(ScheduleOptionsWithoutInput, total=False):
    """The keyword arguments of ``Processors.schedule``, which documents them, and of ``schedules.create``."""

    input: Any


@dataclass(frozen=True)
class DeclaredSchedule:
    """The arguments of a call of ``Processors.schedule``, which are checked when all job types are known."""

    name: str
    job_type: Any
    options: ScheduleOptions


@dataclass(frozen=True)
class TickRule:
    """When a schedule ticks: at the times of a cron expression in a time zone, or at an interval after its anchor."""

    cron: str | None
    every_seconds: float | None
    timezone: str
    anchor: datetime

    def ticks(self, after: datetime) -> Iterator[datetime]:
        """Yield the ticks after a time, in UTC. A cron expression ends when it has not matched for fifty years."""
        if self.every_seconds is not None:
            every = timedelta(seconds=self.every_seconds)
            number = max((after - self.anchor) // every + 1, 1)
            while number * every < datetime.max.replace(tzinfo=UTC) - self.anchor:
                yield self.anchor + number * every
                number += 1
            return
        for local in _cronsim().CronSim(self.cron, after.astimezone(self.zone)):
            tick = local.astimezone(UTC)
            if tick > after:  # When a clock is set back, a fixed time of the hour that is repeated has passed already.
                yield tick
                after = tick

    def next(self, after: datetime) -> datetime | None:
        """Return the first tick after a time, or None if there is none."""
        return next(self.ticks(after), None)

    def due(self, first: datetime, now: datetime, limit: int) -> tuple[list[datetime], datetime | None]:
        """Return the last ``limit`` ticks from ``first`` until now, oldest first, and the tick that follows.

        The time that this takes depends on the limit only, even if the schedule has not fired for years. If ``first``
        is a tick of an earlier rule, the ticks of this one begin after its anchor.
        """
        ticks = deque([first], maxlen=limit)
        after = max(first, self.anchor)
        for tick in islice(self.ticks(after), limit):
            if tick > now:
                return list(ticks), tick
            ticks.append(tick)
            after = tick
        for tick in self.ticks(max(after, self._before(now, limit))):
            if tick > now:
                return list(ticks), tick
            ticks.append(tick)
        return list(ticks), None

    def _before(self, now: datetime, count: int) -> datetime:
        """Return a time before the last ``count`` ticks until now, and not long before them."""
        if self.every_seconds is not None:
            return self.anchor + ((now - self.anchor) // timedelta(seconds=self.every_seconds) - count) * timedelta(
                seconds=self.every_seconds
            )
        reverse = _cronsim().CronSim(self.cron, now.astimezone(self.zone), reverse=True)
        earliest: datetime = [now, *islice(reverse, count + 1)][-1]
        # Ticks around a change of the clock may be others in reverse.
        day = timedelta(days=1)
        is_regular = (earliest - day).astimezone(self.zone).utcoffset() == now.astimezone(self.zone).utcoffset()
        return (earliest if is_regular else earliest - day).astimezone(UTC)

    @cached_property
    def zone(self) -> tzinfo:
        return UTC if self.timezone == "UTC" else ZoneInfo(self.timezone)  # CronSim is faster with UTC itself.


def checked_schedule(
    name: str,
    job_type: str | JobType[Any, Any],
    options: ScheduleOptions,
    find: Callable[[str], JobType[Any, Any]],
    *,
    calls_keys: bool = False,
) -> dict[str, Any]:
    """Return the columns of a schedule. ``find``: returns the job type with a name, or raises ``JobTypeNotFound``.

    ``calls_keys``: whether to check that the input has keys for limits also if one of them is a function. A function
    may query the database, so it is not called where schedules are declared. Raises ``InvalidSchedule``, which names
    the schedule.
    """

    def checked(argument: str, check: Callable[..., Any], *given: Any) -> Any:
        try:
            return check(*given)
        except (JobchainsError, TypeError, ValueError) as error:
            raise InvalidSchedule(name, error, argument) from error

    def option(argument: str, kind: Value[Any], default: Any = None) -> Any:
        check = kind.check if default is not None else partial(kind.check_or, default=None)
        return checked(argument, check, argument, options.get(argument, default))

    checked("name", SCHEDULE_NAME.check, "name", name)
    found = checked("job_type", _checked_type, job_type, find)
    cron = options.get("cron")
    if (cron is None) == (options.get("every") is None):
        raise InvalidSchedule(name, "pass either cron= or every=.")
    zone = checked("timezone", _checked_zone, options.get("timezone"))
    return {
        "name": name,
        "type_name": found.name,
        "cron": None if cron is None else checked("cron", _checked_cron, cron, zone),
        "every_seconds": option("every", Duration(least=1)),
        "timezone": zone,
        "overlap": option("overlap", Choice(*get_args(Overlap)), "allow"),
        "on_missed": option("on_missed", Choice(*get_args(OnMissed)), "run_once"),
        "max_catch_up": option("max_catch_up", Count(1, 2**31 - 1), 100),
        "jitter_seconds": option("jitter", Duration()),
        "queue": option("queue", QUEUE),
        "priority": option("priority", PRIORITY),
        "input": checked("input", _checked_input, found, options.get("input"), calls_keys),
    }


def digest_of(schedules: Sequence[Mapping[str, Any]]) -> str:
    """Return a text that identifies a set of declarations, or "" if it is empty."""
    text = json.dumps(sorted(schedules, key=lambda schedule: str(schedule["name"])), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest() if schedules else ""


def _checked_type(given: Any, find: Callable[[str], JobType[Any, Any]]) -> JobType[Any, Any]:
    name = name_of(given)
    found = find(name)
    if not found.entry:
        raise ValueError(f"{name!r} is declared with entry=False, so no chain can start with it.")
    if found.blocker_slots:
        raise ValueError(f"{name!r} requires blockers, which a schedule cannot pass.")
    return found


def _checked_input(job_type: JobType[Any, Any], given: Any, calls_keys: bool) -> str:
    try:
        encoded = job_type.input_codec.encode(given, InvalidInput)
    except InvalidInput as error:
        raise error.about("input") from None
    limits = None if job_type.processor is None else job_type.processor.limits
    if limits is not None and (calls_keys or not any(map(callable, limits.declared_keys))):
        limits.keys(job_type.name, job_type.decode_input(encoded))  # It raises InvalidInput.
    return encoded


def _checked_cron(given: Any, zone: str) -> str:
    cron = " ".join(given.split()) if isinstance(given, str) else ""
    if not 0 < len(cron) <= CRON_LENGTH:
        raise ValueError(f"cron={given!r:.100} is not a cron expression of up to {CRON_LENGTH} characters.")
    cronsim = _cronsim()
    if len(cron.split()) != 5:
        raise ValueError(f"cron={cron!r} does not have 5 fields: minute, hour, day, month and weekday.")
    try:
        first = TickRule(cron, None, zone, datetime.now(UTC)).next(datetime.now(UTC))
    except cronsim.CronSimError as error:
        if not _is_valid_in_any_month(cron):
            raise ValueError(f"cron={cron!r} is not a valid expression: {error}.") from error
        first = None
    if first is None:
        raise ValueError(f"cron={cron!r} never matches.")
    return cron


def _is_valid_in_any_month(cron: str) -> bool:
    """Return whether an invalid expression names days that its months do not have, as in "0 0 31 2 *"."""
    minute, hour, day, _, weekday = cron.split()
    try:
        _cronsim().CronSim(f"{minute} {hour} {day} * {weekday}", datetime.now(UTC))
    except _cronsim().CronSimError:
        return False
    return True


def _checked_zone(given: Any) -> str:
    name = getattr(given, "key", "UTC" if given is UTC else given) or django_settings.TIME_ZONE or "UTC"
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, TypeError, ValueError, OSError) as error:
        raise ValueError(
            f"timezone={given!r:.100} is not a known time zone: pass a name such as 'Europe/Berlin'. On a system "
            "without a database of time zones, install tzdata."
        ) from error
    return str(name)


def _cronsim() -> Any:
    try:
        import cronsim
    except ImportError as error:
        raise ValueError(
            "cron= needs cronsim: install django_jobchains[schedules]. every= does not need it."
        ) from error
    return cronsim
