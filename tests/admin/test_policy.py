"""Every page works with the policy ``default-src 'self'``: it contains nothing that this policy would block."""

from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest
from django.urls import reverse

from django_jobchains import queues
from django_jobchains.admin.base import TimeLimitExceeded
from django_jobchains.admin.lists import changelists
from tests.admin.actions.browsing import choose_action, url
from tests.admin.visibility.test_pages import PAGES
from tests.admin.visibility.world import make_world

#: Attributes with URLs that a browser loads or opens.
ADDRESSES = ("src", "href", "action", "formaction", "data", "poster", "srcset", "xlink:href")


class Blocked(HTMLParser):
    """Collects what the policy would block."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self._is_script = False
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._is_script = tag == "script"
        names = dict(attrs)
        if tag in ("style", "base", "iframe", "object", "embed") or (tag == "script" and not names.get("src")):
            self.found.append(tag)
        self.found += [f"{tag} {name}" for name in names if name == "style" or name.startswith("on")]
        self.found += [
            f"{tag} {name}={value}" for name, value in attrs if name in ADDRESSES and not _is_here(tag, value or "")
        ]

    def handle_data(self, data: str) -> None:
        if self._is_script and data.strip():
            self.found.append(f"script: {data.strip()[:40]}")


def _is_here(tag: str, address: str) -> bool:
    scheme = address.split("/", 1)[0].split("?", 1)[0]
    return not address.startswith("//") and (":" not in scheme or (tag == "a" and scheme in ("http:", "https:")))


@pytest.fixture
def world(db, settings):
    queues.pause("mail")
    queues.set_limit("mail", 2)
    return make_world()


@pytest.mark.slow
def test_nothing_on_any_page_is_blocked(superuser, world, monkeypatch):
    found = {title: Blocked(superuser.get(page(world)).content.decode()).found for title, page in PAGES.items()}
    enqueue = reverse("admin:django_jobchains_chain_enqueue")
    others: dict[str, Callable[[], Any]] = {
        "enqueue": lambda: superuser.get(enqueue),
        "an empty list": lambda: superuser.get(url("changelist") + "?q=nothing"),
        "several": lambda: choose_action(superuser, "delete", [world.plain, world.stepped[0]]),
        "several to complete": lambda: choose_action(superuser, "complete", [world.plain]),
        "the admin's index": lambda: superuser.get(reverse("admin:index")),
    }
    found |= {title: Blocked(get().content.decode()).found for title, get in others.items()}
    monkeypatch.setattr(changelists.KeysetChangeList, "get_results", _too_late)
    found["took too long"] = Blocked(superuser.get(url("changelist")).content.decode()).found
    assert {title: problems for title, problems in found.items() if problems} == {}


def _too_late(*args: Any) -> None:
    raise TimeLimitExceeded
