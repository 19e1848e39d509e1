"""The dashboard, parsed from its HTML."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from django.test import Client
from django.urls import reverse

#: Elements without an end tag.
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: "list[Element | str]" = field(default_factory=list)

    @property
    def text(self) -> str:
        parts = (child if isinstance(child, str) else child.text for child in self.children)
        return " ".join(" ".join(parts).split())

    def all(self, tag: str = "", **attributes: str) -> "list[Element]":
        """Return the descendants with a tag and a class."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                if child.is_like(tag, attributes):
                    found.append(child)
                found += child.all(tag, **attributes)
        return found

    def is_like(self, tag: str, attributes: dict[str, str]) -> bool:
        wanted = dict(attributes)
        class_ = wanted.pop("class_", None)
        return (
            tag in ("", self.tag)
            and (class_ is None or class_ in self.attributes.get("class", "").split())
            and all(self.attributes.get(name) == value for name, value in wanted.items())
        )


class Page(HTMLParser):
    """An HTML page as a tree. Sections are found by the ids of their headings."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.root = Element("page", {})
        self._open = [self.root]
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open[-1].tag == tag, f"</{tag}> ends <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)

    def section(self, name: str) -> Element:
        [section] = self.root.all("section", **{"aria-labelledby": f"jobchains-{name}"})
        return section

    def rows(self, name: str) -> list[list[str]]:
        """Return the texts of a table's cells, without its header."""
        lines = [line for body in self.section(name).all("tbody") for line in body.all("tr")]
        return [[cell.text for cell in line.children if isinstance(cell, Element)] for line in lines]

    def alerts(self) -> list[str]:
        return [item.text for item in self.section("alerts").all("li")]

    def figures(self) -> dict[str, str]:
        return {
            part.all("dt")[0].text: part.all("dd")[0].text
            for figures in self.root.all("dl", class_="jobchains-figures")
            for part in figures.all("div")
        }

    def messages(self) -> list[str]:
        return [item.text for part in self.root.all("ul", class_="messagelist") for item in part.all("li")]


def index() -> str:
    return reverse("admin:app_list", kwargs={"app_label": "django_jobchains"})


def fragment() -> str:
    return reverse("admin:django_jobchains_dashboard")


def open_dashboard(client: Client, address: str = "") -> Page:
    """Return the dashboard on the index page of the app, or the page with this address."""
    reply = client.get(address or index())
    assert reply.status_code == 200
    return Page(reply.content.decode())


def change(client: Client, verb: str, queue: str, **fields: str) -> Any:
    """Submit a form like a button of the page."""
    return client.post(
        reverse("admin:django_jobchains_change_queue"), {"verb": verb, "queue": queue, **fields}, follow=True
    )
