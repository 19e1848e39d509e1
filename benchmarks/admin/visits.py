"""Every page, with each filter, combination, form of search and a page far behind the first."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from django.http import HttpResponseBase
from django.test import Client
from django.urls import reverse

from benchmarks.admin.places import Places
from benchmarks.admin.sizes import COMMON, HUB, LOOP
from benchmarks.admin.visiting import Visit
from django_jobchains.statuses import Status

APP = "django_jobchains"
#: A type that never fails, one that often does, one of later steps, one that does not exist.
RELIABLE, FAILING, LATER, ABSENT = "shop.type_10", "mail.type_01", "shop.step_5", "shop.absent"


def all_visits(places: Places) -> Iterator[Visit]:
    for name in ("chain", "job"):
        yield from _lists(name, places)
    yield from _chain_pages(places)
    yield from _job_pages(places)
    yield from _dashboard()


def _lists(name: str, places: Places) -> Iterator[Visit]:
    group = f"List of {name}s"
    cursor = places.chain_cursor if name == "chain" else places.job_cursor
    for title, query in _queries(places).items():
        url = reverse(f"admin:{APP}_{name}_changelist")
        yield _page(group, title, url, **query)
        if not {"q", "o"} & query.keys():
            yield _page(group, f"{title}, far behind the first page", url, after=cursor, **query)


def _queries(places: Places) -> dict[str, dict[str, str]]:
    by_status = {str(status): {"status": str(status)} for status in (*Status.values, "open")}
    types = {
        "the most common type": COMMON,
        "a type of later steps": LATER,
        "a type of one long chain": LOOP,
        "a type that is not there": ABSENT,
    }
    both = {
        "the most common type, failed (4 of them)": {"type": COMMON, "status": "failed"},
        "the most common type, running": {"type": COMMON, "status": "running"},
        "the most common type, blocked": {"type": COMMON, "status": "blocked"},
        "the most common type, open": {"type": COMMON, "status": "open"},
        "the most common type, completed": {"type": COMMON, "status": "completed"},
        "a type that never fails, failed": {"type": RELIABLE, "status": "failed"},
        "a type that often fails, failed": {"type": FAILING, "status": "failed"},
        "a type of later steps, failed": {"type": LATER, "status": "failed"},
        "a type of one long chain, failed": {"type": LOOP, "status": "failed"},
        "a type of one chain, completed": {"type": HUB, "status": "completed"},
    }
    searches = {
        "search by id of a chain": places.failed.pk,
        "search by id of a job": places.twenty_steps.current_job_id,
        "search by id that is not there": "01234567-89ab-7def-8123-456789abcdef",
        "search by the beginning of an id": str(places.failed.pk)[:18],
        "search by key": places.key,
        "search by key that is not there": "order:none",
        "search by type": COMMON,
        "search by the beginning of 15 types": "shop.",
        "search by the beginning of all types": "s",
        "search by what is not there": "no such thing",
    }
    return {
        "all": {},
        "all, oldest first": {"o": "oldest"},
        **by_status,
        **{title: {"type": name} for title, name in types.items()},
        **both,
        **{title: {"q": str(term)} for title, term in searches.items()},
        "search by the beginning of types, failed": {"q": "shop.", "status": "failed"},
        "blocked by a chain with thousands of dependents": {"blocked_by": str(places.hub.pk)},
        "blocked by it, failed": {"blocked_by": str(places.hub.pk), "status": "failed"},
    }


def _chain_pages(places: Places) -> Iterator[Visit]:
    chains = {
        "one step": places.single,
        "20 steps": places.twenty_steps,
        "thousands of steps": places.loop,
        "thousands of dependents": places.hub,
        "one of these dependents": places.dependent,
        "hundreds of blockers, waiting": places.waiting_join,
        "hundreds of blockers, completed": places.completed_join,
        "failed": places.failed,
        "thousands of failed attempts": places.stubborn,
        "thousands of log lines": places.talkative,
    }
    for title, chain in chains.items():
        yield _page("Page of a chain", title, reverse(f"admin:{APP}_chain_change", args=[chain.pk]))


def _job_pages(places: Places) -> Iterator[Visit]:
    jobs = {
        "of a chain of one step": places.single,
        "last of 20 steps": places.twenty_steps,
        "last of thousands of steps": places.loop,
        "hundreds of blockers": places.waiting_join,
        "thousands of dependents of its chain": places.hub,
        "failed": places.failed,
        "thousands of failed attempts": places.stubborn,
        "thousands of log lines": places.talkative,
    }
    for title, chain in jobs.items():
        yield _page("Page of a job", title, reverse(f"admin:{APP}_job_change", args=[chain.current_job_id]))


def _dashboard() -> Iterator[Visit]:
    yield _page("Dashboard", "the page", reverse("admin:app_list", args=[APP]))


def _page(group: str, title: str, url: str, **query: str) -> Visit:
    asked = f"{url}?{urlencode(query)}" if query else url

    def request(client: Client) -> HttpResponseBase:
        response: Any = client.get(asked)
        return response  # type: ignore[no-any-return]

    return Visit(group, title, request)
