"""Errors as text that any database takes: the path that records a failure cannot itself fail."""

import re
import traceback

MOST_BYTES = 64 * 1024
#: NUL, and halves of surrogate pairs: neither PostgreSQL nor UTF-8 can hold them.
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def clean(text: str, most: int = MOST_BYTES) -> str:
    """The text with what cannot be stored replaced, and cut in the middle to ``most`` characters of at most 4 bytes."""
    text = _UNSTORABLE.sub("\ufffd", _cut(text, most))
    while len(text.encode()) > most:
        text = _cut(text, len(text) * 3 // 4)
    return text


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


def printable(text: str) -> str:
    """Without control characters: what jobs and errors say must not drive a terminal."""
    return "".join(letter if letter.isprintable() else " " for letter in text)
