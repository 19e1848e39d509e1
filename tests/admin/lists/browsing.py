"""A change list, parsed from its HTML."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any
from urllib.parse import urljoin

from django.test import Client
from django.urls import reverse

CHAINS, JOBS = "chain", "job"


def address(name: str) -> str:
    return reverse(f"admin:django_jobchains_{name}_changelist")


@dataclass
class ListPage:
    """The cells of each row by the name of their column, the links by their text, and the whole text."""

    status: int
    html: str
    rows: list[dict[str, str]] = field(default_factory=list)
    links: dict[str, str] = field(default_factory=dict)
    headers: list[str] = field(default_factory=list)
    text: str = ""
    tags: list[tuple[str, dict[str, str]]] = field(default_factory=list)

    @property
    def ids(self) -> list[str]:
        return [row["id"] for row in self.rows]


def open_list(client: Client, name: str, query: str | dict[str, Any] = "", *, follow: bool = True) -> ListPage:
    path = address(name)
    if isinstance(query, str):
        reply = client.get(urljoin(path, query) if query.startswith("?") else path, follow=follow)
    else:
        reply = client.get(path, query, follow=follow)
    html = reply.content.decode()
    reader = _Reader(name)
    reader.feed(html)
    reader.close()
    text = " ".join(" ".join(reader.text).split())
    return ListPage(reply.status_code, html, reader.rows, reader.links, reader.headers, text, reader.tags)


class _Reader(HTMLParser):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.rows: list[dict[str, str]] = []
        self.links: dict[str, str] = {}
        self.headers: list[str] = []
        self.text: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self._name = name
        self._column: str | None = None
        self._in_table = self._in_head = False
        self._link: str | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.tags.append((tag, given))
        self._in_table |= given.get("id") == "result_list"
        self._in_head = (self._in_head or tag == "thead") and tag != "tbody"
        if tag == "tr" and self._in_table and not self._in_head:
            self.rows.append({})
        if tag in ("td", "th") and self._in_table:
            names = [name for name in given.get("class", "").split() if name.startswith(("field-", "column-"))]
            self._column = names[0].split("-", 1)[1] if names else None
            if self._in_head and self._column:
                self.headers.append(self._column)
            elif self._column:
                self.rows[-1][self._column] = ""
        if tag == "a":
            self._link = given.get("href", "")
            change = f"/{self._name}/"
            if self._column == "type_name" and not self._in_head and change in self._link:
                self.rows[-1]["id"] = self._link.split(change)[1].split("/")[0]

    def handle_endtag(self, tag: str) -> None:
        if tag == "table":
            self._in_table = False
        if tag in ("td", "th"):
            self._column = None
        if tag == "a":
            self._link = None

    def handle_data(self, data: str) -> None:
        self.text.append(data)
        if self._link is not None and data.strip():
            self.links.setdefault(data.strip(), self._link)
        if self._in_table and self._column and not self._in_head:
            self.rows[-1][self._column] = f"{self.rows[-1][self._column]} {data.strip()}".strip()
