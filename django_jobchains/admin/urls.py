"""The parameters in the URLs of pages. Invalid parameters are ignored."""

from typing import Any
from uuid import UUID

from django.http import HttpRequest

#: With this parameter, the response is the inner part of the page, for the script that refreshes it.
FRAGMENT = "fragment"
_MAX_INTEGER = 2**31 - 1


def parse_uuid(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None


def integer_parameter(request: HttpRequest, name: str, minimum: int, maximum: int = _MAX_INTEGER) -> int | None:
    text = request.GET.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        return None
    return int(text) if minimum <= int(text) <= maximum else None


def log_position(request: HttpRequest) -> tuple[int, int] | None:
    """Return the lease number of the attempt that logged a line, and the line's position in that attempt's log."""
    lease_number, _separator, position = request.GET.get("log", "").partition(".")
    if not all(part.isascii() and part.isdecimal() and len(part) <= 9 for part in (lease_number, position)):
        return None
    return int(lease_number), int(position)


def url_with(request: HttpRequest, **changes: Any) -> str:
    """Return the URL of this page with changed parameters; None removes one."""
    parameters = request.GET.copy()
    parameters.pop(FRAGMENT, None)
    for name, value in changes.items():
        parameters.pop(name, None)
        if value is not None:
            parameters[name] = str(value)
    return f"{request.path}?{parameters.urlencode()}" if parameters else request.path
