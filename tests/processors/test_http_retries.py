"""``retry_after`` and ``retryable_http_status`` read the responses of the errors of several libraries."""

import io
from email.message import Message
from urllib.error import HTTPError, URLError

import httpx
import pytest
import requests
from django.utils import timezone
from django.utils.datastructures import CaseInsensitiveMapping
from django.utils.dateparse import parse_datetime

from django_jobchains import records
from django_jobchains.processors import Backoff, Processors, retry_after, retryable_http_status
from django_jobchains.testing import run_due_jobs

NOON = parse_datetime("2026-11-26T12:00:00Z")
DAY = 86_400


def urllib_error(status, headers=None):
    message = Message()
    for name, value in (headers or {}).items():
        message[name] = value
    return HTTPError("http://shop", status, "no", message, io.BytesIO())


def requests_error(status, headers=None):
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers or {})
    return requests.HTTPError(response=response)


def httpx_error(status, headers=None):
    request = httpx.Request("GET", "http://shop")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, headers=headers))


class Response:
    """The response of requests and httpx. That of requests is false if its status is an error."""

    def __init__(self, status, headers):
        self.status_code, self.headers = status, CaseInsensitiveMapping(headers or {})

    def __bool__(self):
        return self.status_code < 400


class HTTPStatusError(Exception):
    """As requests and httpx raise it: the response has the status and the headers."""

    def __init__(self, status=None, headers=None):
        self.response = None if status is None else Response(status, headers)


class ClientResponseError(Exception):
    """As aiohttp raises it: the error has the status and the headers."""

    def __init__(self, status, headers=None):
        self.status, self.headers = status, CaseInsensitiveMapping(headers or {})


LIBRARIES = (urllib_error, HTTPStatusError, ClientResponseError, requests_error, httpx_error)
libraries = pytest.mark.parametrize("make", LIBRARIES)


@pytest.fixture(autouse=True)
def _noon(monkeypatch):
    monkeypatch.setattr(timezone, "now", lambda: NOON)


@libraries
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        (" 7 ", 7),
        ("0", 0),
        ("1.5", 1.5),
        ("-5", 0),
        ("9" * 400, None),
        (str(10 * DAY), DAY),
        ("Thu, 26 Nov 2026 12:01:30 GMT", 90),
        ("Thursday, 26-Nov-26 12:01:30 GMT", 90),
        ("Thu Nov 26 12:01:30 2026", 90),
        ("Thu, 26 Nov 2026 11:00:00 GMT", 0),
        ("Thu, 26 Nov 2099 12:00:00 GMT", DAY),
        ("Thu, 99 Nov 2026 12:00:00 GMT", None),
        ("Thu, 26 Nov 9999999 12:00:00 GMT", None),
        ("soon", None),
        ("", None),
        ("nan", None),
        ("inf", None),
    ],
)
def test_the_header_is_a_number_of_seconds_or_a_date(make, value, seconds):
    assert retry_after(make(503, {"retry-after": value})) == seconds


@libraries
def test_an_error_without_the_header_has_no_wait(make):
    assert retry_after(make(503)) is None


@pytest.mark.parametrize("error", [None, ValueError("no"), URLError("refused"), SystemExit(7), HTTPStatusError()])
def test_an_error_without_a_response_has_no_wait_and_is_retried(error):
    assert retry_after(error) is None
    assert error is None or retryable_http_status(error)


@libraries
def test_the_error_may_be_the_cause_of_another_one(make):
    with pytest.raises(ValueError, match="wrapped") as caught:
        try:
            raise make(404, {"Retry-After": "5"})
        except Exception as error:
            raise ValueError("wrapped") from error
    assert retry_after(caught.value) == 5
    caught.value.__cause__.__cause__ = caught.value  # a cycle
    assert retry_after(caught.value) == 5


def test_the_longest_wait_can_be_set():
    assert retry_after(urllib_error(429, {"Retry-After": "500"}), maximum_seconds=60) == 60


STATUSES = (0, 100, 200, 301, 404, 429, 500, 501, 599, 600)


@pytest.mark.parametrize("function", [retryable_http_status, records.retryable_http_status])
def test_statuses_are_classified(function):
    assert [status for status in STATUSES if function(status)] == [200, 500, 599]


@libraries
def test_errors_are_classified_by_their_status_and_by_what_the_server_asks_for(make):
    assert [status for status in STATUSES[2:] if retryable_http_status(make(status))] == [200, 500, 599]
    assert retryable_http_status(make(429, {"Retry-After": "5"}))


def test_a_job_waits_as_long_as_the_server_asks(db, registry):
    def wait(failures, error):
        seconds = retry_after(error)
        return Backoff().seconds(failures) if seconds is None else seconds

    part = Processors(backoff=wait, retry_if=retryable_http_status)
    registry.add(part)
    errors = [urllib_error(429, {"Retry-After": "0"}), urllib_error(404)]

    @part.register("calls")
    def calls(job):
        raise errors[job.attempt - 1]

    calls.enqueue()
    assert [outcome.ending for outcome in run_due_jobs()] == ["retried", "failed"]
