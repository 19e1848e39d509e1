"""A change list, parsed from its HTML."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

from django.test import Client
from django.urls import reverse

from tests.admin.dashboard.browsing import Element, Page

CHAINS, JOBS = "chain", "job"


def address(name: str) -> str:
    return reverse(f"admin:django_jobchains_{name}_changelist")


@dataclass
class ListPage:
    """The cells of each row by the name of their column, the links by their text, and the whole text."""

    status: int
    html: str
    rows: list[dict[str, str]]
    links: dict[str, str]
    text: str
    tags: list[tuple[str, dict[str, str]]]

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
    root = Page(html).root
    bodies = [body for table in root.all("table", id="result_list") for body in table.all("tbody")]
    links = {link.text: link.attributes.get("href", "") for link in reversed(root.all("a")) if link.text}
    tags = [(element.tag, element.attributes) for element in root.all()]
    rows = [_row(line, name) for body in bodies for line in body.all("tr")]
    return ListPage(reply.status_code, html, rows, links, root.text, tags)


def _row(line: Element, name: str) -> dict[str, str]:
    row = {}
    for cell in [*line.all("th"), *line.all("td")]:
        for column in cell.attributes["class"].split():
            if column.startswith("field-"):
                row[column.removeprefix("field-")] = cell.text
        for link in cell.all("a") if "field-type_name" in cell.attributes["class"] else ():
            row["id"] = link.attributes["href"].split(f"/{name}/")[1].split("/")[0]
    return row
