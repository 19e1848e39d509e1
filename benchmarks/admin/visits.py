"""The visits: every page, with each filter, combination and form of search, and a page far from the first one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from types import MappingProxyType
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.http import HttpResponseBase
from django.test import Client
from django.urls import reverse

from benchmarks.admin.places import Places
from benchmarks.admin.sizes import COMMON, COMMON_QUEUE, HUB, LOOP
from benchmarks.admin.visiting import Visit
from django_jobchains.models import Chain
from django_jobchains.statuses import Status

APP = "django_jobchains"
#: A type that never fails, one that often fails, one of later steps, and one that does not exist.
RELIABLE, FAILING, LATER, ABSENT = "shop.type_10", "mail.type_01", "shop.step_5", "shop.absent"

#: The column that reverses the order of a list.
AGE_COLUMN = {"chain": 4, "job": 6}
#: The number of rows of an action on several rows, two pages of a list.
MANY = 100

Query = Callable[[Places], dict[str, object]]


def all_visits() -> Iterator[Visit]:
    for name in ("chain", "job"):
        yield from _lists(name)
    for title, chain in CHAINS.items():
        yield _page("Page of a chain", title, _change_url("chain", chain))
    for title, chain in JOBS.items():
        yield _page("Page of a job", title, _change_url("job", chain))
    yield _page("Dashboard", "the page", lambda places: reverse(f"admin:{APP}_dashboard_changelist"))
    for title, page, query in (
        ("the part that refreshes itself", "changelist", "fragment=1"),
        ("the most common type", "type", f"range=week&name={COMMON}"),
        ("the most common queue", "queue", f"range=week&name={COMMON_QUEUE}"),
    ):
        yield _page("Dashboard", title, _dashboard_url(page, query))
    yield from _questions()
    yield from _actions()


def _lists(name: str) -> Iterator[Visit]:
    group = f"List of {name}s"
    for title, query in QUERIES.items():
        yield _page(group, title, _list_url(name, query, is_deep=False))
    yield _page(group, "all, the oldest first", _list_url(name, _fixed(o=AGE_COLUMN[name]), is_deep=False))
    for title, query in PAGED.items():
        yield _page(group, f"{title}, far from the first page", _list_url(name, query, is_deep=True))


def _dashboard_url(page: str, query: str) -> Callable[[Places], str]:
    return lambda places: f"{reverse(f'admin:{APP}_dashboard_{page}')}?{query}"


def _fixed(**query: object) -> Query:
    return lambda places: query


PAGED: dict[str, Query] = {
    "all": _fixed(),
    **{f"{status}": _fixed(status=status) for status in (*map(str, Status.values), "incomplete")},
    "the most common type": _fixed(type=COMMON),
    "a type of later steps": _fixed(type=LATER),
    "a type of one long chain": _fixed(type=LOOP),
    "an unknown type": _fixed(type=ABSENT),
    "the most common type, failed (4 of them)": _fixed(type=COMMON, status="failed"),
    "the most common type, running": _fixed(type=COMMON, status="running"),
    "the most common type, blocked": _fixed(type=COMMON, status="blocked"),
    "the most common type, cancelled": _fixed(type=COMMON, status="cancelled"),
    "the most common type, completed": _fixed(type=COMMON, status="completed"),
    "the most common type, incomplete": _fixed(type=COMMON, status="incomplete"),
    "a type that never fails, failed": _fixed(type=RELIABLE, status="failed"),
    "a type that often fails, failed": _fixed(type=FAILING, status="failed"),
    "a type of later steps, failed": _fixed(type=LATER, status="failed"),
    "a type of one long chain, failed": _fixed(type=LOOP, status="failed"),
    "a type of one chain, completed": _fixed(type=HUB, status="completed"),
    "a prefix of 15 types": _fixed(q="shop."),
    "a prefix of 15 types, failed": _fixed(q="shop.", status="failed"),
    "a prefix of more types than a search reads": _fixed(q="s"),
    "the most common queue": _fixed(queue=COMMON_QUEUE),
    **{
        f"the most common queue, {status}": _fixed(queue=COMMON_QUEUE, status=status)
        for status in ("failed", "incomplete", "completed")
    },
    "a queue with one chain": _fixed(queue=HUB),
    "a queue with one chain, failed": _fixed(queue=HUB, status="failed"),
    "a queue with one chain, completed": _fixed(queue=HUB, status="completed"),
    "a queue with one long chain": _fixed(queue=LOOP),
    "an unknown queue": _fixed(queue=ABSENT),
    "an unknown queue, completed": _fixed(queue=ABSENT, status="completed"),
    "the most common chain type": _fixed(chain_type=COMMON),
    "chains that are not a blocker": _fixed(roots=1),
    "blocked by a chain with thousands of dependents": lambda places: {"blocked_by": places.hub.pk},
    "blocked by that chain, failed": lambda places: {"blocked_by": places.hub.pk, "status": "failed"},
}
QUERIES: dict[str, Query] = {
    **PAGED,
    "the past 24 hours": _fixed(created="day"),
    "the past 24 hours, failed": _fixed(created="day", status="failed"),
    "id of a chain": lambda places: {"q": places.failed.pk},
    "id of a job": lambda places: {"q": places.twenty_steps.current_job_id},
    "unknown id": _fixed(q="01234567-89ab-7def-8123-456789abcdef"),
    "beginning of an id": lambda places: {"q": str(places.failed.pk)[:18]},
    "deduplication key": lambda places: {"q": places.key},
    "unknown deduplication key": _fixed(q="order:none"),
    "text that matches nothing": _fixed(q="no such thing"),
}

CHAINS: dict[str, Callable[[Places], Chain]] = {
    "one step": lambda places: places.single,
    "20 steps": lambda places: places.twenty_steps,
    "thousands of steps": lambda places: places.loop,
    "thousands of dependents": lambda places: places.hub,
    "one of these dependents": lambda places: places.dependent,
    "hundreds of blockers, waiting": lambda places: places.waiting_join,
    "hundreds of blockers, completed": lambda places: places.completed_join,
    "failed": lambda places: places.failed,
    "thousands of failed attempts": lambda places: places.stubborn,
    "thousands of log lines": lambda places: places.talkative,
}
FAILED, PENDING, COMPLETED = attrgetter("failed_jobs"), attrgetter("pending_jobs"), attrgetter("completed_chains")
#: The last jobs of these chains.
JOBS = {f"last of a chain of {title}" if "step" in title else title: chain for title, chain in CHAINS.items()}


class Taken:
    """Takes the next ``count`` rows for an action at each call. ``since``: the share of the rows to skip."""

    def __init__(self, rows: Callable[[Places], Sequence[UUID]], count: int, since: float = 0.0) -> None:
        self._rows, self._count, self._since, self._calls = rows, count, since, 0

    def __call__(self, places: Places) -> list[UUID]:
        rows = self._rows(places)
        begin = int(len(rows) * self._since) + self._calls * self._count
        self._calls += 1
        return list(rows[begin : begin + self._count])


def _questions() -> Iterator[Visit]:
    """Yield the confirmation pages of actions."""
    group = "Confirmation pages"
    asked = {"retry": "failed", "cancel": "thousands of steps", "complete": "thousands of dependents"}
    for verb, title in asked.items():
        yield _page(group, f"{verb} a chain: {title}", _change_url("chain", CHAINS[title], verb))
    for title in ("one step", "thousands of steps", "thousands of dependents", "hundreds of blockers, waiting"):
        yield _page(group, f"delete a chain: {title}", _change_url("chain", CHAINS[title], "delete"))
    yield _page(group, "enqueue a chain", lambda places: reverse(f"admin:{APP}_chain_enqueue"))
    for verb, name, rows in (("retry", "job", FAILED), ("cancel", "job", PENDING), ("delete", "chain", COMPLETED)):
        answer = {"action": verb, "index": "0", "select_across": "0"}
        yield _form(group, f"{verb} {MANY} {name}s", f"{name}_changelist", Taken(rows, MANY), 200, answer)


def _actions() -> Iterator[Visit]:
    """Yield the actions. Each includes its redirect, which is not followed."""
    group = "Actions"
    for verb, name, rows, since in (
        ("retry", "job", FAILED, 0.0),
        ("cancel", "job", PENDING, 0.0),
        ("run_now", "job", PENDING, 0.25),
        ("delete", "chain", COMPLETED, 0.0),
    ):
        yield _form(group, f"{verb} one {name}", f"{name}_{verb}_many", Taken(rows, 1, since + 0.6), 302)
        yield _form(group, f"{verb} {MANY} {name}s", f"{name}_{verb}_many", Taken(rows, MANY, since), 302)


def _form(
    group: str, title: str, url: str, rows: Taken, status: int, answer: Mapping[str, str] = MappingProxyType({})
) -> Visit:
    """Return a visit that posts selected rows."""

    def request(client: Client, places: Places) -> HttpResponseBase:
        response: Any = client.post(reverse(f"admin:{APP}_{url}"), {**answer, ACTION_CHECKBOX_NAME: rows(places)})
        return response  # type: ignore[no-any-return]

    return Visit(group, title, request, status)


def _change_url(name: str, chain: Callable[[Places], Chain], page: str = "change") -> Callable[[Places], str]:
    def url(places: Places) -> str:
        found = chain(places)
        return reverse(f"admin:{APP}_{name}_{page}", args=[found.pk if name == "chain" else found.current_job_id])

    return url


def _list_url(name: str, query: Query, *, is_deep: bool) -> Callable[[Places], str]:
    def url(places: Places) -> str:
        cursor = {"after": places.chain_cursor if name == "chain" else places.job_cursor} if is_deep else {}
        return f"{reverse(f'admin:{APP}_{name}_changelist')}?{urlencode({**query(places), **cursor})}"

    return url


def _page(group: str, title: str, url: Callable[[Places], str]) -> Visit:
    def request(client: Client, places: Places) -> HttpResponseBase:
        response: Any = client.get(url(places), follow=True)
        return response  # type: ignore[no-any-return]

    return Visit(group, title, request)
