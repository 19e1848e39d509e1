"""The job of each log record, as fields of the record: ``%(job_id)s`` in any formatter."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from django_jobchains.exceptions import RegistryError
from django_jobchains.handlers.running_job import RunningJob
from django_jobchains.middleware.hooks import Middleware
from django_jobchains.text.errors import printable

OWN_FIELDS = ("job_id", "chain_id", "job_type", "attempt")
_RESERVED = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime", *OWN_FIELDS})

#: The fields of all instances. Every record has all of them, so that one formatter fits all.
_fields: dict[str, str] = {}
_values: ContextVar[Mapping[str, Any]] = ContextVar("jobchains_log_fields")


class LogContext(Middleware):
    """Adds ``job_id``, ``chain_id``, ``job_type`` and ``attempt`` to the log records of a handler's thread or task.

    ``names``: keys of the job's context whose values are also added. Control characters in strings are replaced with
    spaces, so that they cannot forge log lines. In log records from outside of handlers, the fields are empty. An
    ``extra`` with the same name takes precedence. For a ``Batch``, only the values that its jobs have in common are
    set.
    """

    def __init__(self, *names: str) -> None:
        self.names = tuple(map(_checked_name, names))
        _install()
        _fields.update(dict.fromkeys((*OWN_FIELDS, *names), ""))

    @contextmanager
    def around_handler(self, job: RunningJob[Any]) -> Iterator[None]:
        token = _values.set(self._values_of(job))
        try:
            yield
        finally:
            _values.reset(token)

    def _values_of(self, job: RunningJob[Any]) -> dict[str, Any]:
        return {
            "job_id": str(getattr(job, "id", "")),
            "chain_id": str(getattr(job, "chain_id", "")),
            "job_type": job.type_name,
            "attempt": getattr(job, "attempt", ""),
            **{name: _on_one_line(job.context.get(name, "")) for name in self.names},
        }


def _on_one_line(value: Any) -> Any:
    """Replace control characters in a string. Other values are formatted by ``repr``, which escapes them."""
    return printable(value) if isinstance(value, str) else value


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED:
        raise RegistryError(f"LogContext({name!r}): log records cannot have a field of this name.")
    return name


class _Attributes(dict[str, Any]):
    """The attributes of a log record. Lets an ``extra`` replace our fields, which ``logging`` would refuse."""

    def __contains__(self, name: object) -> bool:
        return name not in _fields and super().__contains__(name)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


def _install() -> None:
    """Wrap the factory of log records once."""
    if _fields:
        return
    make = logging.getLogRecordFactory()

    def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made = make(*args, **kwargs)
        made.__dict__ = _Attributes({**_fields, **_values.get({}), **made.__dict__})
        return made

    logging.setLogRecordFactory(record)
