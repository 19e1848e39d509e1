"""When to retry a request to a web service: for ``backoff`` and ``retry_if``, and for handlers of records.

The errors of requests, httpx, aiohttp and urllib are recognized by their attributes, so that none of them is imported.
"""

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from django.utils import timezone

from django_jobchains.text.errors import with_causes
from django_jobchains.values import Duration, DurationLike

#: A server that asks for a longer wait is asked again after this time.
MAX_RETRY_AFTER_SECONDS = 86_400.0


def retry_after(error: BaseException | None, maximum_seconds: DurationLike = MAX_RETRY_AFTER_SECONDS) -> float | None:
    """Return the seconds to wait that a response contains in ``Retry-After``, or None without a valid header.

    ``error`` is the argument of a backoff function: an error with a response, or an error whose ``__cause__`` has one.
    The header may be a number of seconds or a date. For a date in the past, returns 0. Returns at most
    ``maximum_seconds``.
    """
    maximum = Duration().check("maximum_seconds", maximum_seconds)
    response = _response_of(error)
    value = None if response is None else response.headers.get("Retry-After")
    seconds = _seconds(str(value).strip()) if value is not None else None
    return None if seconds is None else min(max(seconds, 0.0), maximum)


def retryable_http_status(status: int | BaseException) -> bool:
    """Return whether to retry a request with this status: True for 2xx, and for 5xx except 501.

    A retry would get the same response with 1xx, 3xx, 4xx, 501, and 600 or above. The argument may also be an error, as
    ``retry_if`` receives it. Then the status of its response is used. An error is also retried if its response has a
    valid ``Retry-After``, or if it has no response, such as a lost connection.
    """
    if isinstance(status, BaseException):
        response = _response_of(status)
        if response is None or retry_after(status) is not None:
            return True
        status = _status_of(response) or 0
    return 200 <= status < 300 or (500 <= status < 600 and status != 501)


def _response_of(error: BaseException | None) -> Any:
    """Return the object with the headers and the status: the error's response, or the error itself."""
    for part in with_causes(error):
        for found in (getattr(part, "response", None), part):  # A response of requests is false if its status is.
            if hasattr(getattr(found, "headers", None), "get") and _status_of(found) is not None:
                return found
    return None


def _status_of(response: Any) -> int | None:
    statuses = (getattr(response, name, None) for name in ("status_code", "status", "code"))
    return next((status for status in statuses if isinstance(status, int)), None)


def _seconds(value: str) -> float | None:
    try:
        seconds = float(value)
    except ValueError:
        return _seconds_until(value)
    return seconds if math.isfinite(seconds) else None


def _seconds_until(date: str) -> float | None:
    try:
        time: datetime = parsedate_to_datetime(date)
        return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - timezone.now()).total_seconds()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
