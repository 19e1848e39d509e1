"""The pages of the admin, parsed from their HTML, and what users do on them."""

from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode, urljoin

from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.contrib.messages import get_messages
from django.test import Client
from django.urls import reverse

from django_jobchains.models import Chain

#: Elements without an end tag.
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
#: Each action on chains and jobs, with the permission that it requires.
PERMISSIONS = {
    "complete": "complete_job",
    "retry": "retry_job",
    "run_now": "run_job",
    "reschedule": "run_job",
    "cancel": "cancel_job",
    "delete": "delete_chain",
}


@dataclass
class Element:
    tag: str
    attributes: dict
    children: list = field(default_factory=list)

    @property
    def text(self):
        parts = (child if isinstance(child, str) else child.text for child in self.children)
        return " ".join(" ".join(parts).split())

    def all(self, tag="", class_="", **attributes):
        """Return the descendants with a tag, a class and attributes."""
        found = []
        for child in self.children:
            if isinstance(child, Element):
                if (
                    tag in ("", child.tag)
                    and (not class_ or class_ in child.attributes.get("class", "").split())
                    and attributes.items() <= child.attributes.items()
                ):
                    found.append(child)
                found += child.all(tag, class_, **attributes)
        return found


class Page(HTMLParser):
    """The HTML of a response as a tree. Sections are found by the ids of their headings."""

    def __init__(self, reply):
        super().__init__()
        self.status, self.html = reply.status_code, reply.content.decode()
        self.root = Element("page", {})
        self._open = [self.root]
        self._continues_word = False
        self.feed(self.html)
        self.text = self.root.text

    def handle_starttag(self, tag, attrs):
        self._continues_word = tag == "wbr"
        if self._continues_word:
            return
        element = Element(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(element)
        if tag not in VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self._open[-1].tag == tag, f"</{tag}> ends <{self._open[-1].tag}>"
        self._open.pop()

    def handle_data(self, data):
        texts = self._open[-1].children
        if self._continues_word:
            texts[-1] += data
        else:
            texts.append(data)
        self._continues_word = False

    @property
    def links(self):
        """The addresses of links by their texts: of links to other pages, or else of filters, which may come first."""
        found = [(link.text, link.attributes.get("href", "")) for link in reversed(self.root.all("a")) if link.text]
        return dict(sorted(found, key=lambda link: not link[1].startswith("?")))

    @property
    def rows(self):
        """The texts of each row of a list by the names of the columns, with its id."""
        lines = [line for table in self.root.all("table", id="result_list") for line in table.all("tr")[1:]]
        return [_row(line) for line in lines]

    @property
    def ids(self):
        return [row["id"] for row in self.rows]

    def choices(self, title):
        """Return the texts of the links of a filter."""
        filters = self.root.all("details", **{"data-filter-title": title})
        return [link.text for found in filters for link in found.all("a")]

    # The dashboard

    def section(self, name):
        [section] = self.root.all("section", **{"aria-labelledby": f"jobchains-{name}"})
        return section

    def table(self, name):
        """Return the texts of the cells of a section's table, without its header."""
        lines = [line for body in self.section(name).all("tbody") for line in body.all("tr")]
        return [[cell.text for cell in line.children if isinstance(cell, Element)] for line in lines]

    def alerts(self):
        return [item.text for item in self.section("alerts").all("li")]

    def figures(self):
        parts = [part for figures in self.root.all("dl", "jobchains-figures") for part in figures.all("div")]
        return {part.all("dt")[0].text: part.all("dd")[0].text for part in parts}

    def messages(self):
        return [item.text for part in self.root.all("ul", "messagelist") for item in part.all("li")]


def _row(line):
    """Return the texts of the columns, and separately the notes below a name, and the error below a status."""
    row = {"notes": [note.text for note in line.all("span", "jobchains-cell-note")]}
    row["error"] = " ".join(error.text for error in line.all("span", "jobchains-error-line"))
    for cell in [*line.all("th"), *line.all("td")]:
        text = cell.text
        below_text = [*cell.all("span", "jobchains-cell-note"), *cell.all("span", "jobchains-error-line")]
        for below in reversed(below_text):
            text = text.removesuffix(below.text).strip()
        for name in cell.attributes["class"].split():
            if name.startswith("field-"):
                row[name.removeprefix("field-")] = text
        if "field-status" in cell.attributes["class"] and cell.all("a"):
            row["id"] = cell.all("a")[0].attributes["href"].split("/")[-3]
    return row


def browser(*permissions):
    """Return a client of a new staff user with exactly these permissions."""
    user = User.objects.create_user(f"user-{User.objects.count()}", is_staff=True)
    apps = ("django_jobchains", "records")
    allowed = Permission.objects.filter(content_type__app_label__in=apps, codename__in=permissions)
    assert allowed.count() == len(set(permissions)), f"unknown permission among {permissions}"
    user.user_permissions.set(allowed)
    client = Client()
    client.force_login(user)
    return client


def url(name, row=None, model="chain"):
    """Return the address of a page. ``model``: "chain", "job", or the class of a model, as that of a record's row."""
    model = _model(row, model)
    prefix = f"django_jobchains_{model}" if isinstance(model, str) else model._meta.label_lower.replace(".", "_")
    return reverse(f"admin:{prefix}_{name}", args=[] if row is None else [quote(row.pk)])


def _model(row, model):
    return type(row) if row is not None and row._meta.app_label != "django_jobchains" else model


def verb_url(verb, row, model="chain"):
    """Return the address of the page of an action on a row, or of its page for several rows."""
    name = verb if isinstance(_model(row, model), str) else f"record_{verb}"
    return url(name, row, model) if row is not None else url(f"{name}_many", model=model)


def index():
    return reverse("admin:django_jobchains_dashboard_changelist")


def fragment():
    return f"{index()}?fragment=1"


def subject(kind, name):
    """Return the address of the page of a "type" or "queue"."""
    return f"{reverse(f'admin:django_jobchains_dashboard_{kind}')}?{urlencode({'name': name})}"


def open_list(client, model, query="", *, follow=True):
    """Open a list. ``query``: parameters as a dictionary, or as in a link of the page."""
    is_link = isinstance(query, str)
    address = urljoin(url("changelist", model=model), query) if is_link else url("changelist", model=model)
    return Page(client.get(address, None if is_link else query, follow=follow))


def open_dashboard(client, address=""):
    """Open the dashboard, or the page with this address."""
    reply = client.get(address or index())
    assert reply.status_code == 200
    return Page(reply)


def change_queue(client, verb, queue, **fields):
    """Submit a form like a button of the dashboard."""
    address = reverse("admin:django_jobchains_change_queue")
    return client.post(address, {"verb": verb, "queue": queue, **fields}, follow=True)


def answers(verb, *shown):
    """Return the form data that the page of an action requires."""
    if verb == "complete":
        jobs = [row.current_job_id if isinstance(row, Chain) else row.pk for row in shown]
        return {"job": jobs, "payload": '{"done": true}'}
    return {"delay_minutes": "90"} if verb == "reschedule" else {}


def act(client, verb, row, model="chain", **changes):
    """Confirm the action for one row."""
    return client.post(verb_url(verb, row, model), {**answers(verb, row), **changes})


def ticked(rows):
    return {"_selected_action": [str(getattr(row, "pk", row)) for row in rows]}


def choose_action(client, verb, rows, model="chain", query="", **forged):
    """Select rows of the list and an action, and submit the form."""
    answer = {"action": verb, "index": "0", "select_across": "0", **ticked(rows), **forged}
    return client.post(url("changelist", model=model) + query, answer)


def act_many(client, verb, rows, model="chain", **answers):
    """Confirm the action for several rows."""
    return client.post(verb_url(verb, None, model), {**ticked(rows), **answers})


def messages_in(response):
    """Return the messages that the next page shows."""
    return [str(message) for message in get_messages(response.wsgi_request)]


def text_of(response):
    return str(response.content, "utf-8")
