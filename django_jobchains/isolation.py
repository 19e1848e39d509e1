"""How strictly a function is isolated from the process that calls it, and with which limits."""

import re
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from django_jobchains.values import FLAG, Choice, Count, Duration, DurationLike, Or, check_fields

Level = Literal["inline", "thread", "process", "transient"]

#: From the weakest to the strongest. If a level cannot start, the next weaker one is tried.
LEVELS: tuple[Level, ...] = get_args(Level)
#: The levels that run functions in other processes.
PROCESS_LEVELS: tuple[Level, ...] = ("process", "transient")
#: The time between the request to stop and SIGKILL.
GRACE_SECONDS = 5.0
#: The bytes of one message of a child process.
MESSAGE_LIMIT = 64 * 1024**2

_UNITS = {"": 1, "K": 1024, "M": 1024**2, "G": 1024**3}
_SIZE = re.compile(r"(\d+) ?([KMG]?)B?", re.ASCII | re.IGNORECASE)
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class Fallback:
    """A pool uses the level ``actual``, because the level ``requested`` could not start. ``reason`` explains why."""

    requested: Level
    actual: Level
    reason: str


FallbackCallback = Callable[[Fallback], object]


@dataclass(frozen=True)
class Isolation:
    """Where functions run, and with which limits. Equal instances share one pool.

    ``level``: "inline" is the calling thread, "thread" another thread of this process, "process" a reusable child
    process and "transient" a new child process for each use. The options except ``strict`` and ``on_fallback`` are
    allowed only for the two levels with child processes.

    - ``key``: a label. Child processes are not shared between keys.
    - ``max_workers``: the number of child processes.
    - ``max_jobs_per_worker``, ``max_rss``: a child is replaced after this number of calls, or above this resident
      memory, which is measured after each call.
    - ``memory_limit``: the largest address space of a child. Allocating more raises ``MemoryError`` in the function.
    - ``message_limit``: the largest result, or message, that a child may send, as JSON. A function that returns more
      raises ``RemoteError``.
    - ``cpu_seconds``: the CPU time of one call, rounded up to a whole second. The kernel kills a child that uses more.
    - ``grace_seconds``: the time between the request to stop and SIGKILL.
    - ``idle_ttl``: a child exits after this time without a call.
    - ``minimal_env``: whether to hide environment variables from functions, and from programs that they start.
    - ``setup``: "module:function", called once in each new child.
    - ``strict``: whether to raise an error, instead of using a weaker level, if the level cannot start.
    - ``on_fallback``: called with a ``Fallback`` when a weaker level is used.

    Sizes are bytes or strings such as "500M", and durations are seconds, timedeltas or strings such as "5m". Raises
    ``ValueError`` for values that are not valid.
    """

    level: Annotated[Level, Choice(*LEVELS)]
    _: KW_ONLY
    key: str = "default"
    max_workers: Annotated[int | None, Or(Count(), None)] = None
    max_jobs_per_worker: Annotated[int | None, Or(Count(), None)] = None
    max_rss: int | str | None = None
    memory_limit: int | str | None = None
    message_limit: int | str = MESSAGE_LIMIT
    cpu_seconds: Annotated[float | None, Or(Duration(), None)] = None
    grace_seconds: Annotated[float, Duration(least=0)] = GRACE_SECONDS
    idle_ttl: Annotated[float | None, Or(Duration(), None)] = None
    minimal_env: Annotated[bool, FLAG] = False
    setup: str | None = None
    strict: Annotated[bool, FLAG] = False
    on_fallback: FallbackCallback | None = None

    if TYPE_CHECKING:  # The durations are converted to seconds.

        def __init__(
            self,
            level: Level,
            *,
            key: str = "default",
            max_workers: int | None = None,
            max_jobs_per_worker: int | None = None,
            max_rss: int | str | None = None,
            memory_limit: int | str | None = None,
            message_limit: int | str = MESSAGE_LIMIT,
            cpu_seconds: DurationLike | None = None,
            grace_seconds: DurationLike = GRACE_SECONDS,
            idle_ttl: DurationLike | None = None,
            minimal_env: bool = False,
            setup: str | None = None,
            strict: bool = False,
            on_fallback: FallbackCallback | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("max_rss", "memory_limit", "message_limit"):
            # "1G" and its number of bytes are the same limit.
            object.__setattr__(self, name, _bytes_of(name, getattr(self, name), is_needed=name == "message_limit"))
        key: object = self.key
        if not isinstance(key, str) or not key:
            raise ValueError(f"key={key!r:.50} is not valid: use a string, such as 'images'.")
        if not (self.on_fallback is None or callable(self.on_fallback)):
            raise ValueError(f"on_fallback={self.on_fallback!r:.50} is not a function.")
        if self.setup is not None:
            check_target(self.setup, "setup")
        self._check_level()

    @property
    def options(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        _, *options = fields(self)
        values = {option.name: getattr(self, option.name) for option in options}
        return {option.name: values[option.name] for option in options if values[option.name] != option.default}

    @property
    def is_process(self) -> bool:
        """Whether functions run in child processes."""
        return self.level in PROCESS_LEVELS

    @property
    def max_rss_bytes(self) -> int | None:
        return _bytes_of("max_rss", self.max_rss)

    @property
    def memory_limit_bytes(self) -> int | None:
        return _bytes_of("memory_limit", self.memory_limit)

    @property
    def message_limit_bytes(self) -> int:
        return _bytes_of("message_limit", self.message_limit) or MESSAGE_LIMIT

    def _check_level(self) -> None:
        unused = _PROCESS_OPTIONS if not self.is_process else _REUSE_OPTIONS if self.level == "transient" else {}
        given = [name for name, default in unused.items() if getattr(self, name) != default]
        if given:
            remedy = "use level 'process'" + ("" if "max_jobs_per_worker" in given else " or 'transient'")
            names = ", ".join(given)
            raise ValueError(f"Isolation level {self.level!r} does not support {names}: remove it, or {remedy}.")


def to_isolation(given: "Isolation | Level | None") -> Isolation | None:
    """Return an ``Isolation``, if need be from a level; raise ``TypeError`` or ``ValueError`` for other values."""
    if given is None or isinstance(given, Isolation):
        return given
    if not isinstance(given, str):
        raise TypeError(f"isolation={given!r:.50} is not a level: use {_CHOICES}, or Isolation(level, …).")
    if given not in LEVELS:
        raise ValueError(f"isolation={given!r:.50} is not a level: use {_CHOICES}, or Isolation(level, …).")
    return Isolation(given)


_CHOICES = '"thread", "process" or "transient"'

#: The options that make sense only for reusable processes, with their defaults.
_REUSE_OPTIONS = {"max_jobs_per_worker": None, "max_rss": None, "idle_ttl": None}
_PROCESS_OPTIONS = {
    **_REUSE_OPTIONS,
    "max_workers": None,
    "memory_limit": None,
    "message_limit": MESSAGE_LIMIT,
    "cpu_seconds": None,
    "minimal_env": False,
    "setup": None,
}


def check_target(target: object, argument: str) -> None:
    """Raise ``ValueError`` unless it is "module:function"."""
    if not (isinstance(target, str) and _TARGET.fullmatch(target)):
        raise ValueError(
            f"{argument}={target!r:.100} is not valid: use 'module:function', such as 'shop.images:resize'."
        )


def _bytes_of(name: str, given: object, *, is_needed: bool = False) -> int | None:
    """Return a size in bytes. Raise ``ValueError`` if it is neither a positive number of bytes nor like "500M"."""
    if given is None and not is_needed:
        return None
    size = given if isinstance(given, int) and not isinstance(given, bool) else 0
    if isinstance(given, str):
        size = parse_size(given)
    if size < 1:
        raise ValueError(f"{name}={given!r:.50} is not valid: use bytes, or a string such as '500M' or '2G'.")
    return size


def parse_size(text: str) -> int:
    """Return the bytes of a text such as "500M", or 0 if it is not a size."""
    match = _SIZE.fullmatch(text)
    return int(match[1]) * _UNITS[match[2].upper()] if match else 0
