"""No page reveals a hidden row. This is checked for each page, set of permissions and kind of hidden row."""

import html
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from django_jobchains.db.ids import new_id
from django_jobchains.models import Chain, Job
from tests.admin.lists.browsing import open_list
from tests.admin.pages import rows
from tests.admin.visibility.world import OWN, PEOPLE, SHARED_KEY, World, browser, own, rival

APP = "admin:django_jobchains"


def _list(model: str, **query: Any) -> str:
    return reverse(f"{APP}_{model}_changelist") + (f"?{urlencode(query)}" if query else "")


def _page(model: str, id_: UUID, name: str = "change", **query: Any) -> str:
    return reverse(f"{APP}_{model}_{name}", args=[id_]) + (f"?{urlencode(query)}" if query else "")


def _autocomplete(term: str) -> str:
    """Return the address that a model of the project with a foreign key to jobs requests."""
    field = {"app_label": "django_jobchains", "model_name": "jobblocker", "field_name": "job"}
    return f"{reverse('admin:autocomplete')}?{urlencode({**field, 'term': term})}"


VERBS = ("complete", "retry", "run_now", "reschedule", "cancel", "delete")
QUERIES: dict[str, dict[str, str]] = {
    "all": {},
    "failed": {"status": "failed"},
    "open": {"status": "open"},
    "of a type": {"type": OWN},
    "with a key of both": {"q": SHARED_KEY},
    "with the start of a type": {"q": "shop."},
}

Addresses = dict[str, Callable[[World], str]]
PAGES: Addresses = {
    **{
        f"list of {model}s: {title}": lambda world, model=model, query=query: _list(model, **query)
        for model in ("chain", "job")
        for title, query in QUERIES.items()
    },
    "chains that wait for it": lambda world: _list("chain", blocked_by=world.plain.pk),
    "jobs that wait for it": lambda world: _list("job", blocked_by=world.plain.pk),
    "chain: plain": lambda world: _page("chain", world.plain.pk),
    "chain: refreshed": lambda world: _page("chain", world.plain.pk, fragment=1),
    "chain: hidden step": lambda world: _page("chain", world.stepped[0].pk),
    "chain: hidden step, from": lambda world: _page("chain", world.stepped[0].pk, **{"from": 2}),
    "chain: at a hidden step": lambda world: _page("chain", world.ends_hidden[0].pk),
    "job: plain": lambda world: _page("job", world.plain.pk),
    "job: beside a hidden step": lambda world: _page("job", world.stepped[2].pk),
    "job: of a hidden chain": lambda world: _page("job", world.inside.pk),
    "chain's history": lambda world: _page("chain", world.stepped[0].pk, "history"),
    "job's history": lambda world: _page("job", world.inside.pk, "history"),
    "autocomplete": lambda world: _autocomplete(""),
    "autocomplete of a key": lambda world: _autocomplete(SHARED_KEY),
    "dashboard": lambda world: reverse("admin:app_list", args=["django_jobchains"]),
    "dashboard, refreshed": lambda world: reverse(f"{APP}_dashboard"),
    **{
        f"{verb}: {title}": lambda world, verb=verb, find=find: _page("chain", find(world), verb)
        for verb in VERBS
        for title, find in {
            "plain": lambda world: world.plain.pk,
            "hidden step": lambda world: world.stepped[0].pk,
            "at a hidden step": lambda world: world.ends_hidden[0].pk,
        }.items()
    },
    **{
        f"{verb}: of a hidden chain": lambda world, verb=verb: _page("job", world.inside.pk, verb)
        for verb in VERBS[:-1]
    },
}


def leaks(world: World, text: str) -> list[str]:
    return [word for word in ("rival", *world.hidden_ids) if word in text.lower()]


def everything_of(reply: Any) -> str:
    return str(reply.content, "utf-8") + reply.headers.get("Location", "")


@pytest.mark.slow
@pytest.mark.parametrize("person", PEOPLE)
def test_nothing_of_a_hidden_row_is_on_any_page(way, world, person):
    other = User.objects.create_user("other")
    for job, message in ((world.hidden_job, "Retried for the rival."), (world.inside, "Retried.")):
        LogEntry.objects.log_actions(other.pk, [job], CHANGE, message)
    client = browser(*PEOPLE[person])
    replies = {title: client.get(page(world)) for title, page in PAGES.items()}
    assert {reply.status_code for reply in replies.values()} <= {200, 302, 403, 404}
    found = {title: leaks(world, everything_of(reply)) for title, reply in replies.items()}
    assert {title: words for title, words in found.items() if words} == {}


@pytest.mark.slow
def test_the_same_pages_show_visible_rows(superuser, world):
    """Check that the previous test can fail."""
    found = {title for title, page in PAGES.items() if leaks(world, everything_of(superuser.get(page(world))))}
    pages = {title for title in PAGES if not title.startswith(VERBS)}
    assert pages - found == {"job: beside a hidden step", "chain's history", "job's history"}


#: Addresses that contain the id of a hidden row. The responses must be the same as for a missing row.
NAMED: dict[str, Callable[[str], str]] = {
    **{
        f"{model}: {name}": lambda id_, model=model, name=name: _page(model, id_, name)
        for model in ("chain", "job")
        for name in ("change", "history", *(VERBS if model == "chain" else VERBS[:-1]))
    },
    "chains that wait for it": lambda id_: _list("chain", blocked_by=id_),
    "jobs that wait for it": lambda id_: _list("job", blocked_by=id_),
    "chain by id": lambda id_: _list("chain", q=id_),
    "job by id": lambda id_: _list("job", q=id_),
    "chain by the start of an id": lambda id_: _list("chain", q=id_[:20]),
    "job by the start of an id": lambda id_: _list("job", q=id_[:20]),
}


@pytest.mark.slow
@pytest.mark.parametrize("person", PEOPLE)
def test_a_hidden_row_is_like_a_missing_one(way, world, person):
    client = browser(*PEOPLE[person])
    [waiting] = Job.objects.filter(type_name="rival.type", status="blocked")
    [awaited] = Job.objects.filter(type_name="rival.type", status="running")
    for title, page in NAMED.items():
        absent = _answer(client, page, str(new_id()))
        hidden = {world.hidden_chain.pk, waiting.pk, awaited.pk} | (
            {world.hidden_job.pk} if title.startswith("job") else set()
        )
        for id_ in hidden:
            assert _answer(client, page, str(id_)) == absent, title


def _answer(client: Client, address: Callable[[str], str], id_: str) -> tuple[int, str]:
    """Return a response without the id."""
    reply = client.get(address(id_))
    client.cookies.pop("messages", None)
    text = re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", everything_of(reply))
    return reply.status_code, text.replace(id_, "ID").replace(id_[:20], "START")


def test_the_id_of_a_hidden_step_does_not_lead_to_its_chain(way, world):
    client = browser(*PEOPLE["may do all"])
    reply = client.get(_page("chain", world.hidden_job.pk))
    assert reply["Location"] == reverse("admin:index")
    assert client.get(_page("chain", world.stepped[2].pk))["Location"].endswith(f"#step-{world.stepped[2].pk}")


def test_hidden_steps_are_replaced_by_a_note(way, world):
    page = everything_of(browser("view_chain", "view_job").get(_page("chain", world.stepped[0].pk)))
    assert page.count('class="jobchains-step"') == 2
    assert "1 step that you may not view" in page


def test_without_the_permission_for_jobs_a_chain_shows_no_steps(way, world):
    page = everything_of(browser("view_chain").get(_page("chain", world.stepped[0].pk)))
    assert page.count('class="jobchains-step"') == 0
    assert "3 steps that you may not view" in page


def test_visible_rows_are_on_all_lists(way, world):
    client = browser("view_chain", "view_job")
    for name, model in (("chain", Chain), ("job", Job)):
        expected = model.objects.filter(type_name=OWN)
        assert expected.count() == 5 + (name == "job") * 2
        assert set(open_list(client, name).ids) == {str(row.pk) for row in expected}


def test_a_page_with_many_hidden_rows_is_filled(way, db, monkeypatch):
    [mine] = own()
    for _ in range(120):
        rival()
    page = everything_of(browser("view_chain", "view_job").get(_list("chain")))
    assert str(mine.pk) in page


def test_dependents_are_paged_past_hidden_ones_and_by_visible_ids(way, db):
    [awaited] = own()
    wanted = []
    for _ in range(12):
        for _hidden in range(2):
            rows.waits(rival("blocked")[0], [awaited])
        [waiting] = own("blocked")
        rows.waits(waiting, [awaited])
        stepped = rows.chain(2, "blocked", OWN)
        Job.objects.filter(pk=stepped[1].pk).update(type_name="rival.step")
        rows.waits(stepped[1], [awaited])
        wanted += [waiting.chain_id, stepped[0].chain_id]
    client = browser("view_chain", "view_job")
    first = everything_of(client.get(_page("chain", awaited.pk)))
    [link] = re.findall(r'href="([^"]+dependents=[^"]+)"', first)
    hidden = map(str, Job.objects.filter(type_name__startswith="rival.").values_list("pk", flat=True))
    assert not [id_ for id_ in hidden if id_ in link]
    rest = everything_of(client.get(html.unescape(link)))
    assert {id_ for id_ in wanted if str(id_) in first or str(id_) in rest} == set(wanted)
