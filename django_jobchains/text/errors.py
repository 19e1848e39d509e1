"""Errors as text that any database can store. Recording a failure must not fail."""

import logging
import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, FunctionType, TracebackType
from typing import Any

import django

from django_jobchains.exceptions import JobchainsError
from django_jobchains.text.redaction import may_hold_secrets, redacted_text
from django_jobchains.text.validation_errors import is_quoting, message_without_values

MAX_BYTES = 64 * 1024
#: What texts begin with that a payload codec has encoded: see ``payloads.codecs``.
ENCODED = "jobchains-codec:"
#: NUL and lone surrogates, which PostgreSQL or UTF-8 cannot store.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")

_PACKAGE = Path(__file__).parent.parent
#: The folders of what calls handlers and functions of pools.
_CALLERS = tuple(str(_PACKAGE / folder) + os.sep for folder in ("attempts", "children", "middleware"))
#: Frames of these files after the callers' frames do not belong to a handler: a commit has failed, for example.
_NOT_HANDLERS = (str(_PACKAGE) + os.sep, str(Path(django.__file__).parent) + os.sep)

#: Redacting this many characters takes about two seconds, during which no other thread runs.
_MAX_REDACTED = 16 * 1024 * 1024


def clean(text: str, max_bytes: int = MAX_BYTES) -> str:
    """Return the text without characters that cannot be stored, and cut in the middle to ``max_bytes``.

    A text that has to be cut is redacted first, because the rest of a secret would not be recognized later. A text that
    looks like an encoded one gets a space before it.
    """
    text = unmarked(text)
    if len(text) <= max_bytes:
        cleaned = _UNSTORABLE.sub("\ufffd", text)
        if len(cleaned.encode()) <= max_bytes:
            return cleaned
    text = _UNSTORABLE.sub("\ufffd", _cut(_redacted_to_cut(text), max_bytes))
    while len(text.encode()) > max_bytes:
        text = _cut(text, len(text) * 3 // 4)
    return text


def unmarked(text: str) -> str:
    """Return the text, with a space before it if it looks like an encoded one, which readers would decode."""
    return f" {text}" if text.startswith(ENCODED) else text


def _redacted_to_cut(text: str) -> str:
    """Redact a text. Keep only the beginning of a very long one, because its end might start inside a secret."""
    if not may_hold_secrets(text):
        return text
    omitted = len(text) - _MAX_REDACTED
    redacted = redacted_text(text[:_MAX_REDACTED])
    return f"{redacted}\n… {omitted} characters omitted …" if omitted > 0 else redacted


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3 - 40
    return f"{text[:head]}\n… {len(text) - head - tail} characters omitted …\n{text[-tail:]}"


def type_name(error: BaseException) -> str:
    """Return the type of an error with its module. For a ``RemoteError``, it is the type in the other process."""
    if name := getattr(error, "qualified_type_name", None):
        return str(name)
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def describe(error: BaseException) -> str:
    """Return ``Type: message``, even if the message cannot be created, without the values that pydantic quotes."""
    try:
        # A subclass of str may have its own format.
        message = message_without_values(error) or str.__str__(str(error))
    except BaseException as problem:
        message = f"<its message could not be read: {type(problem).__name__}>"
    return clean(f"{type(error).__qualname__}: {message}" if message else type(error).__qualname__)


def traceback_of(error: BaseException) -> str:
    """Return the traceback with causes, but without local variables and without the values that pydantic quotes.

    It begins with the handler, not with the frames of this package that called it.
    """
    try:
        parts = list(_with_causes(error))
        if not any(map(is_quoting, parts)):
            return clean(_formatted(error))
        # Python would call ``str``, which writes the value of each problem, however many and large they are.
        return clean(
            "\nThe above exception led to the following one:\n\n".join(map(_traceback_of_one, reversed(parts)))
        )
    except BaseException as problem:
        return f"<the traceback could not be formatted: {type(problem).__name__}>"


def _formatted(error: BaseException) -> str:
    """Return Python's own text of the traceback, with causes."""
    formatted = traceback.TracebackException.from_exception(error, compact=True)
    parts: list[tuple[Any, Any]] = [(formatted, error)]
    for part, own in parts:
        _omit_callers(part.stack, own)
        if not part.stack:
            part.stack = None  # It would be written as a heading without calls.
        pairs = ((part.__cause__, own.__cause__), (part.__context__, own.__context__))
        parts += [(each, of) for each, of in pairs if each is not None]
    return "".join(formatted.format())


def _omit_callers(calls: traceback.StackSummary, error: BaseException) -> None:
    """Remove the frames of this package that called the handler, unless the error is from this package or Django.

    An error of this package that is about what the handler did, such as its output, has no other frames.
    """
    if isinstance(error, JobchainsError) and all(call.filename.startswith(_NOT_HANDLERS[0]) for call in calls):
        del calls[:]
        return
    place = next((place for place, call in enumerate(calls) if not call.filename.startswith(_CALLERS)), len(calls))
    if place < len(calls) and not calls[place].filename.startswith(_NOT_HANDLERS):
        del calls[:place]


def _traceback_of_one(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    _omit_callers(frames, error)
    calls = "".join(frames.format())
    if message := message_without_values(error):
        last_lines = [f"{line}\n" for line in (f"{type_name(error)}: {message}", *getattr(error, "__notes__", ()))]
    else:
        last_lines = traceback.format_exception_only(error)
    return "".join(["Traceback (most recent call last):\n" if calls else "", calls, *last_lines])


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and the errors that its traceback includes."""
    open_errors, seen = [error], set()
    while open_errors:
        part = open_errors.pop()
        if id(part) not in seen:
            seen.add(id(part))
            yield part
            inner = part.exceptions if isinstance(part, BaseExceptionGroup) else ()
            cause = part.__context__ if part.__cause__ is None and not part.__suppress_context__ else part.__cause__
            open_errors += [each for each in (cause, *inner) if each is not None]


def log_text(error: BaseException) -> str:
    """Return ``Type: message`` on one line, redacted, for a log record."""
    return printable(redacted_text(describe(error)))


def log_error(logger: logging.Logger, error: BaseException, message: str, *args: object) -> None:
    """Log ``message`` with the error as its last argument, and the traceback; both redacted."""
    if logger.isEnabledFor(logging.ERROR):
        path, line, function, _ = logger.findCaller(stacklevel=2)
        arguments = (*args, log_text(error))
        record = logger.makeRecord(logger.name, logging.ERROR, path, line, message, arguments, None, function)
        add_traceback(record, error)
        logger.handle(record)


def add_traceback(record: logging.LogRecord, error: BaseException) -> None:
    """Add an error to a log record, redacted.

    Formatters write ``exc_text``; its lines are indented, so that an error cannot forge a record. Error trackers read
    ``exc_info``. If its text contains anything to redact, that is a stand-in with the type's name and the traceback.
    """
    text = redacted_text(traceback_of(error))
    record.exc_text = "\n".join(f"  {printable(line)}" for line in text.splitlines())
    shown = redacted_error(error, text)
    record.exc_info = (type(shown), shown, shown.__traceback__)


def redacted_error(error: BaseException, text: str | None = None) -> BaseException:
    """Return the error, or a stand-in with the type's name and the traceback if its text contains anything to redact.

    Its traceback has no local variables. ``text``: the redacted traceback, if it is known.
    """
    text = redacted_text(traceback_of(error)) if text is None else text
    shown = without_variables(error) if _is_written_as(text, error) else None
    return shown or _stand_in(error)


def _is_written_as(text: str, error: BaseException) -> bool:
    try:
        return not any(map(is_quoting, _with_causes(error))) and _formatted(error) == text
    except BaseException:
        return False


def _stand_in(error: BaseException) -> Exception:
    kind = type(error)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    stand_in: type[Exception] = type(kind.__name__, (Exception,), names)
    message = redacted_text(describe(error)).removeprefix(f"{kind.__qualname__}: ")
    return stand_in(message).with_traceback(_copy(error.__traceback__))


def without_variables(error: BaseException) -> BaseException | None:
    """Remove the frames from the tracebacks of an error and its causes; return it, or None if it does not allow that.

    Their local variables hold inputs, which must not reach an error tracker, and open cursors. A context that ``from``
    hides is removed, because it may quote an input.
    """
    errors, seen = [error], set()
    try:
        while errors:
            current = errors.pop()
            if id(current) not in seen:
                seen.add(id(current))
                current.with_traceback(_copy(current.__traceback__))
                if current.__suppress_context__:
                    current.__context__ = None
                parts = current.exceptions if isinstance(current, BaseExceptionGroup) else ()
                errors += [each for each in (current.__cause__, current.__context__, *parts) if each is not None]
    except BaseException:  # the class of the error may define anything
        return None
    return error


def _copy(calls: TracebackType | None) -> TracebackType | None:
    """Return a traceback with the same files, lines and names. Clearing frames would end suspended coroutines."""
    entries = []
    while calls is not None:
        entries.append(calls)
        calls = calls.tb_next
    copy = None
    for entry in reversed(entries):
        copy = TracebackType(copy, _frame_like(entry), -1, entry.tb_lineno)
    return copy


def _frame_like(entry: TracebackType) -> FrameType:
    """Return a frame of a generator that has not started. It has no variables, and refers to no other frame."""
    code = entry.tb_frame.f_code
    named = _generator.__code__.replace(
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
    )
    frame: FrameType = FunctionType(named, {"__name__": entry.tb_frame.f_globals.get("__name__")})().gi_frame
    return frame


def _generator() -> Iterator[None]:
    yield


def printable(text: str) -> str:
    """Replace control characters with spaces: they could control a terminal or forge a line of a log."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)


def first_line(text: str) -> str:
    """Return the first line of an error's text, or "" if it is empty."""
    return (text.strip().splitlines() or [""])[0]


def with_causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and its ``__cause__``s."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # A cause may lead back to its error.
        yield error
        seen.add(id(error))
        error = error.__cause__
