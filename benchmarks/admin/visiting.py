"""Visits pages with Django's test client, and measures the time and the SQL statements of each.

Everything except the database runs in this process: a request passes the middleware, the session and the templates.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from statistics import quantiles
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.http import HttpResponseBase
from django.test import Client
from django.test.utils import CaptureQueriesContext

from benchmarks.admin.filling import USER
from benchmarks.admin.places import Places
from benchmarks.machine import cpu_seconds, load

#: The limit for the p95 of every page.
MAX_MILLISECONDS = 300.0


@dataclass(frozen=True)
class Visit:
    """A page to visit. ``request`` requests it once; each call of an action uses other rows. ``status`` is expected."""

    group: str
    name: str
    request: Callable[[Client, Places], HttpResponseBase]
    status: int = 200


@dataclass
class Visited:
    """The figures of a visit.

    ``first`` is the time of the first request, whose statements are counted. ``cpu`` has the milliseconds of CPU time
    of each request, in Python and the database together; it is empty where this is not known. ``failure`` is the reason
    why there are no figures.
    """

    group: str
    name: str
    statements: int = 0
    first: float = 0.0
    milliseconds: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    load: float = 0.0
    failure: str = ""

    @property
    def p50(self) -> float:
        return _quantile(self.milliseconds, 50)

    @property
    def p95(self) -> float:
        return _quantile(self.milliseconds, 95)

    @property
    def cpu_p95(self) -> float:
        return _quantile(self.cpu, 95)

    @property
    def is_fast(self) -> bool:
        return not self.failure and self.p95 < MAX_MILLISECONDS

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def _quantile(values: list[float], percent: int) -> float:
    if len(values) < 2:
        return max(values, default=0.0)
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def operator() -> Client:
    """Return a client that is logged in as the superuser created by ``fill``."""
    client = Client()
    client.force_login(User.objects.get(username=USER))
    return client


def visited(visits: Iterable[Visit], client: Client, places: Places, times: int) -> Iterator[Visited]:
    """Measure each visit in turn. A failure is recorded in the visit's row and does not stop the others."""
    for visit in visits:
        result = Visited(visit.group, visit.name)
        try:
            _measure(visit, client, places, times, result)
        except Exception as error:
            result.failure = f"{type(error).__name__}: {error}"
        result.load = load()
        yield result


def _measure(visit: Visit, client: Client, places: Places, times: int, result: Visited) -> None:
    with CaptureQueriesContext(connection) as statements:
        result.first = _milliseconds(visit, client, places)
    result.statements = len(statements)
    database = _database_process()
    for _ in range(times):
        before = _cpu_seconds(database)
        result.milliseconds.append(_milliseconds(visit, client, places))
        if before is not None:
            result.cpu.append(((_cpu_seconds(database) or 0.0) - before) * 1_000)


def _database_process() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (process,) = cursor.fetchone()
    return int(process)


def _cpu_seconds(database: int) -> float | None:
    of_database = cpu_seconds(database)
    return None if of_database is None else of_database + time.process_time()


def _milliseconds(visit: Visit, client: Client, places: Places) -> float:
    begun = time.perf_counter()
    response = visit.request(client, places)
    taken = (time.perf_counter() - begun) * 1_000
    if response.status_code != visit.status:
        raise UnexpectedResponse(visit.status, response)
    return taken


class UnexpectedResponse(Exception):
    def __init__(self, wanted: int, response: HttpResponseBase) -> None:
        where = f" to {response['Location']}" if response.has_header("Location") else ""
        super().__init__(f"{response.status_code}{where} instead of {wanted}")
