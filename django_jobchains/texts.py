"""Errors as text that any database takes: the path that records a failure cannot itself fail."""

import logging
import re
import traceback

from django_jobchains.redaction import may_hold_secrets, redacted_text

MOST_BYTES = 64 * 1024
#: NUL, and halves of surrogate pairs: neither PostgreSQL nor UTF-8 can hold them.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


#: To redact this many characters takes about two seconds, and no other thread may run meanwhile.
_MAX_REDACTED = 16 * 1024 * 1024


def clean(text: str, most: int = MOST_BYTES) -> str:
    """The text with what cannot be stored replaced, and cut in the middle to ``most`` bytes.

    A text that has to be cut is redacted first: what is left of a secret would not be recognised later.
    """
    if len(text) <= most:
        cleaned = _UNSTORABLE.sub("\ufffd", text)
        if len(cleaned.encode()) <= most:
            return cleaned
    text = _UNSTORABLE.sub("\ufffd", _cut(_redacted_to_cut(text), most))
    while len(text.encode()) > most:
        text = _cut(text, len(text) * 3 // 4)
    return text


def _redacted_to_cut(text: str) -> str:
    """Of a very long text with secrets only the beginning: a part from its end might begin inside a secret."""
    if not may_hold_secrets(text):
        return text
    left_out = len(text) - _MAX_REDACTED
    redacted = redacted_text(text[:_MAX_REDACTED])
    return f"{redacted}\n… {left_out} characters left out …" if left_out > 0 else redacted


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    head, tail = most * 2 // 3, most // 3 - 40
    return f"{text[:head]}\n… {len(text) - head - tail} characters left out …\n{text[-tail:]}"


def describe(error: BaseException) -> str:
    """``Type: message``, also when the message cannot be made."""
    try:
        message = str.__str__(str(error))  # a subclass of str may bring a format of its own
    except BaseException as problem:
        message = f"<its message could not be read: {type(problem).__name__}>"
    return clean(f"{type(error).__qualname__}: {message}" if message else type(error).__qualname__)


def traceback_of(error: BaseException) -> str:
    """The traceback with causes, without local variables."""
    try:
        return clean("".join(traceback.format_exception(error)))
    except BaseException as problem:
        return f"<the traceback could not be written: {type(problem).__name__}>"


def log_text(error: BaseException) -> str:
    """``Type: message`` on one line, with its secrets masked, for a log record."""
    return printable(redacted_text(describe(error)))


def log_error(logger: logging.Logger, error: BaseException, message: str, *args: object) -> None:
    """Log ``message`` with the error as its last argument, and the traceback; both with their secrets masked.

    The record has the traceback as ``exc_text``, which formatters append, and no ``exc_info``: from that, a formatter
    would write the error as it is. The lines of the traceback are indented, so that an error cannot forge a record.
    """
    if not logger.isEnabledFor(logging.ERROR):
        return
    path, line, function, _ = logger.findCaller(stacklevel=2)
    arguments = (*args, log_text(error))
    record = logger.makeRecord(logger.name, logging.ERROR, path, line, message, arguments, None, function)
    lines = redacted_text(traceback_of(error)).splitlines()
    record.exc_text = "\n".join(f"  {printable(text)}" for text in lines)
    logger.handle(record)


def printable(text: str) -> str:
    """The text with a space for each control character, which could drive a terminal or forge a line of a log."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else " " for letter in text)
