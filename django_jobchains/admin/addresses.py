"""What the address of a page says of it, and the addresses of its other parts.

A parameter that is none, too small or too large is as if it were not there.
"""

from typing import Any
from uuid import UUID

from django.http import HttpRequest

#: With this parameter the answer is the inner part of the page, for a script that refreshes it.
FRAGMENT = "fragment"
_MOST = 2**31 - 1


def uuid_of(text: str | None) -> UUID | None:
    try:
        return UUID(text) if text else None
    except ValueError:
        return None


def whole_number(request: HttpRequest, name: str, least: int, most: int = _MOST) -> int | None:
    text = request.GET.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 10):
        return None
    return int(text) if least <= int(text) <= most else None


def line_place(request: HttpRequest) -> tuple[int, int] | None:
    """The lease number of the attempt that logged a line, and its position in what that attempt logged."""
    lease_number, _dot, position = request.GET.get("log", "").partition(".")
    if not all(part.isascii() and part.isdecimal() and len(part) <= 9 for part in (lease_number, position)):
        return None
    return int(lease_number), int(position)


def address(request: HttpRequest, **changes: Any) -> str:
    """Of this page with other parameters; None takes one away."""
    parameters = request.GET.copy()
    parameters.pop(FRAGMENT, None)
    for name, value in changes.items():
        parameters.pop(name, None)
        if value is not None:
            parameters[name] = str(value)
    return f"{request.path}?{parameters.urlencode()}" if parameters else request.path
