"""With German as the language, no text of the admin is in English on any page."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import translation

from django_jobchains import queues
from django_jobchains.admin import base
from django_jobchains.admin.base import TimeLimitExceeded
from django_jobchains.admin.detail import views
from django_jobchains.chains import Chain
from django_jobchains.db.ids import new_id
from django_jobchains.models import Job
from django_jobchains.processors import get_registry
from django_jobchains.store import Store
from django_jobchains.store.workers import Beat
from tests.admin.actions.browsing import PERMISSIONS, act, act_many, answers, choose_action, messages_in, url
from tests.admin.actions.conftest import pack, send
from tests.admin.catalogues import entries, placeholders
from tests.admin.dashboard.browsing import Element, Page, index
from tests.admin.dashboard.conftest import fail
from tests.admin.pages import rows
from tests.commands.conftest import run  # noqa: F401 - a fixture
from tests.support.chains import STATES, failed, mail, scheduled, ship
from tests.support.jobs import create

pytestmark = [pytest.mark.slow, pytest.mark.django_db]

VERBS = tuple(PERMISSIONS)
READ_ALOUD = ("aria-label", "title", "data-label", "data-text-failed", "data-text-ended", "data-text-waiting")

#: The address of a page, or a function that submits a form.
Asked = Callable[[Client], Any]


@pytest.fixture(autouse=True)
def _language():
    """Deactivate the language that a request has activated."""
    with translation.override("en"):
        yield


@pytest.fixture(autouse=True)
def _declared_types(monkeypatch):
    monkeypatch.setattr(get_registry(), "declared", {part.name: part for part in (ship, mail, pack, send)})


def read(client: Client, asked: str | Asked, language: str = "de") -> Page:
    """Return a page, after following redirects if a form was submitted."""
    client.defaults["HTTP_ACCEPT_LANGUAGE"] = language
    reply = client.get(asked) if isinstance(asked, str) else asked(client)
    while reply.status_code == 302:
        reply = client.get(reply["Location"])
    return Page(reply.content.decode())


def is_german(client: Client, asked: str | Asked) -> bool:
    """Assert that a page contains no English text."""
    assert english_in(read(client, asked)) == set()
    return True


def english_in(page: Page) -> set[str]:
    return english_among(_texts(page.root))


def english_among(texts: Iterable[str]) -> set[str]:
    whole, with_values = _english()
    return {text for text in texts if text in whole or with_values.fullmatch(text)}


@cache
def _english() -> tuple[set[str], re.Pattern[str]]:
    """Return the English texts that differ in German: those without placeholders, and a pattern for the others."""
    pairs = {(form, entry.translations) for entry in entries("de") for form in entry.message.forms}
    texts = {" ".join(form.replace("%%", "%").split()) for form, german in pairs if form not in german}
    with_values = {text for text in texts if placeholders(text)}
    return texts - with_values, re.compile("|".join(map(_with_any_values, sorted(with_values))))


def _with_any_values(text: str) -> str:
    """Return a pattern. Only values of exceptions may be long, because other texts may contain an "of" or "in"."""
    parts = re.split(r"%\((\w+)\)s|\{(\w+)\}", text)
    names = [name or other for name, other in zip(parts[1::3], parts[2::3], strict=True)]
    values = [".+" if name in ("problem", "reason", "names") else ".{1,60}" for name in names]
    return "".join(re.escape(part) + value for part, value in zip(parts[::3], [*values, ""], strict=True))


def _texts(element: Element) -> Iterator[str]:
    if element.tag in ("script", "style"):
        return
    yield from (element.attributes[name] for name in READ_ALOUD if name in element.attributes)
    if element.attributes.get("type") == "submit":
        yield element.attributes.get("value", "")
    yield element.text
    for child in element.children:
        if isinstance(child, Element):
            yield from _texts(child)
        else:
            yield " ".join(child.split())


def every_state(store: Store) -> list[Chain]:
    """Create a chain in each state. Pending jobs get a lower priority, so that they are not claimed for the others."""
    made = []
    for make in STATES.values():
        Job.objects.filter(status="pending").update(priority=0)
        made.append(make(store).refresh())
    return made


def full_dashboard(store: Store) -> None:
    likely = {"host": "web-1", "pid": 7, "version": "1.0", "slots": 10, "queues": None, "type_names": ("shop.mail",)}
    for name, states in {
        "a": {"busy": 3, "stuck": 1, "is_stopping": False},
        "b": {"busy": 0, "stuck": 0, "is_stopping": True},
        "c": {"busy": 0, "stuck": 0, "is_stopping": False},
    }.items():
        store.workers.beat(Beat(id=name, up_seconds=120.0, heartbeat_seconds=10.0, **likely, **states))
    create(store, 3, "shop.lost")
    create(store)
    fail(store)
    queues.pause("default")
    queues.set_limit("slow", 2)


def test_the_dashboard(superuser, store):
    assert is_german(superuser, index())
    full_dashboard(store)
    page = read(superuser, index())
    assert english_in(page) == set()
    assert any("Kein Worker bedient Typ shop.lost: 3 Jobs sind fällig" in text for text in page.alerts()), page.alerts()


def test_messages_about_queues(superuser):
    address = reverse("admin:django_jobchains_change_queue")
    for verb in ("pause", "resume", "limit", "forget"):
        for slots in ("", "1", "2", "0"):
            form = {"verb": verb, "queue": "mail", "slots": slots}
            assert is_german(superuser, lambda client, form=form: client.post(address, form)), form


@pytest.mark.parametrize("model", ["chain", "job"])
def test_the_lists(superuser, store, model):
    list_ = url("changelist", model=model)
    assert is_german(superuser, list_)
    id_, *_ = [str(make(store).id) for make in STATES.values()]
    for query in ("", f"?q={id_}", f"?q={id_[:13]}", "?q=shop", "?q=shop.ship", "?q=nothing", "?after=x"):
        assert is_german(superuser, list_ + query), query


def test_a_page_that_exceeds_the_time_limit(superuser, monkeypatch):
    def give_up(*_: Any) -> None:
        raise TimeLimitExceeded

    for module in (base, views):
        monkeypatch.setattr(module, "time_limit", give_up)
    for address in (url("changelist"), url("change", rows.chain()[0])):
        page = read(superuser, address)
        assert [heading.text for heading in page.root.all("h1")] == ["Zeitlimit überschritten"]
        assert english_in(page) == set()


@pytest.mark.parametrize("state", STATES)
def test_the_pages_of_a_chain_and_of_a_job(superuser, staff, store, state):
    chain = STATES[state](store).refresh()
    for client in (superuser, staff()):  # who may view payloads, and who may not
        assert is_german(client, url("change", chain.current_job, "job"))
        assert is_german(client, url("change", chain))


def test_the_pages_of_a_long_chain_with_every_section(superuser):
    job = rows.chain(41, "blocked", deduplication_key="7", max_attempts=20, crashes=2, on_blocker_failure="wait")[-1]
    rows.attempts(job, 14)
    rows.lines(job, 130)
    rows.progress(job)
    rows.waits(job, *(rows.chain(1, "running") for _ in range(9)))
    for waiting in [rows.chain(2, "blocked")[-1] for _ in range(22)]:
        rows.link(waiting, [Job.objects.get(pk=job.chain_id)])
    chain, own = url("change", Job(pk=job.chain_id)), url("change", job, "job")
    for address in (chain, f"{chain}?from=12", own, f"{own}?attempts=5&log=1.50"):
        assert is_german(superuser, address)
    assert {"21 Schritte werden hier nicht angezeigt", "Wartet auf 9 von 9 Blockern"} <= set(
        _texts(read(superuser, chain).root)
    )


@pytest.mark.parametrize("verb", VERBS)
def test_the_confirmation_pages(superuser, store, verb):
    """The page for several rows shows for each of them what will happen, or why it is skipped."""
    assert is_german(superuser, url(verb, scheduled(store)))
    assert is_german(superuser, url(verb, failed(store)))
    made = every_state(store)
    assert is_german(superuser, lambda client: choose_action(client, verb, made))
    assert is_german(superuser, lambda client: choose_action(client, verb, []))


@pytest.mark.parametrize("verb", VERBS)
def test_messages_about_results(superuser, store, verb):
    superuser.defaults["HTTP_ACCEPT_LANGUAGE"] = "de"
    messages = [text for chain in every_state(store) for text in messages_in(act(superuser, verb, chain))]
    made: list[Any] = [*every_state(store), new_id()]
    messages += messages_in(act_many(superuser, verb, made, delay_minutes="1", cascade="on", payload="5"))
    assert len(messages) > len(STATES) - 1
    assert english_among(messages) == set()


def test_invalid_forms(superuser, store):
    chain, form = scheduled(store).refresh(), f"{url('enqueue')}?type=shop.pack"
    once = {"payload_number": "5", "deduplication_key": "5"}
    posts = [
        *((url("complete", chain), {**answers("complete", chain), "payload": text}) for text in ("", "{", "1" * 5000)),
        *((url("reschedule", chain), given) for given in ({}, {"delay_minutes": "1", "run_at": "2030-01-01T10:00"})),
        *((form, given) for given in (once, once, {"queue": "\x01", "deduplication_key": "\x01"})),
    ]
    for address, given in posts:
        assert is_german(superuser, lambda client, address=address, given=given: client.post(address, given))
    pages = (f"{url('complete', chain)}?type={name}" for name in ("shop.mail", "shop.unknown"))
    for page in (*pages, url("enqueue"), form):
        assert is_german(superuser, page)


def test_english_is_recognized(superuser, store):
    """Check that the other tests can fail."""
    chain = failed(store)
    full_dashboard(store)  # pauses the queue
    for page in (index(), url("changelist"), url("enqueue"), url("change", chain)):
        assert len(english_in(read(superuser, page, "en"))) > 4


def test_the_terminal_is_always_in_english(run):  # noqa: F811 - the fixture
    job = rows.chain(1, "failed")[0]
    rows.lines(job, 2)
    with translation.override("de"):
        lines = run("show", job.chain_id).lines
    assert any(line.endswith("info · line 1") for line in lines)
    assert any("failed · " in line for line in lines)
