"""No page reveals a hidden row. This is checked for each page, set of permissions and kind of hidden row."""

import html
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import User
from django.urls import reverse

from django_jobchains import schedules
from django_jobchains.db.ids import new_id
from django_jobchains.models import Chain, Job
from tests.admin import rows
from tests.admin.browsing import PERMISSIONS, browser, fragment, index, open_list, url
from tests.admin.visibility.world import OWN, PEOPLE, SHARED_KEY, each_person, everything_of, own, rival

VERBS = tuple(PERMISSIONS)
QUERIES = {
    "all": {},
    "failed": {"status": "failed"},
    "open": {"status": "open"},
    "of a type": {"type": OWN},
    "with a key of both": {"q": SHARED_KEY},
    "with the start of a type": {"q": "shop."},
}


def listed(model, **query):
    return f"{url('changelist', model=model)}?{urlencode(query)}"


def page(model, id_, name="change", **query):
    return f"{url(name, Job(pk=id_), model)}?{urlencode(query)}"


def autocomplete(term):
    """Return the address that a model of the project with a foreign key to jobs requests."""
    field = {"app_label": "django_jobchains", "model_name": "jobblocker", "field_name": "job"}
    return f"{reverse('admin:autocomplete')}?{urlencode({**field, 'term': term})}"


#: The address of each page, in a world.
PAGES = {
    **{
        f"list of {model}s: {title}": lambda world, model=model, query=query: listed(model, **query)
        for model in ("chain", "job")
        for title, query in QUERIES.items()
    },
    "chains that wait for it": lambda world: listed("chain", blocked_by=world.plain.pk),
    "jobs that wait for it": lambda world: listed("job", blocked_by=world.plain.pk),
    "chain: plain": lambda world: page("chain", world.plain.pk),
    "chain: refreshed": lambda world: page("chain", world.plain.pk, fragment=1),
    "chain: hidden step": lambda world: page("chain", world.stepped[0].pk),
    "chain: hidden step, from": lambda world: page("chain", world.stepped[0].pk, **{"from": 2}),
    "chain: at a hidden step": lambda world: page("chain", world.ends_hidden[0].pk),
    "job: plain": lambda world: page("job", world.plain.pk),
    "job: beside a hidden step": lambda world: page("job", world.stepped[2].pk),
    "job: of a hidden chain": lambda world: page("job", world.inside.pk),
    "chain's history": lambda world: page("chain", world.stepped[0].pk, "history"),
    "job's history": lambda world: page("job", world.inside.pk, "history"),
    "autocomplete": lambda world: autocomplete(""),
    "autocomplete of a key": lambda world: autocomplete(SHARED_KEY),
    "dashboard": lambda world: index(),
    "dashboard, refreshed": lambda world: fragment(),
    **{
        f"{verb}: {title}": lambda world, verb=verb, find=find: page("chain", find(world).pk, verb)
        for verb in VERBS
        for title, find in {
            "plain": lambda world: world.plain,
            "hidden step": lambda world: world.stepped[0],
            "at a hidden step": lambda world: world.ends_hidden[0],
        }.items()
    },
    **{
        f"{verb}: of a hidden chain": lambda world, verb=verb: page("job", world.inside.pk, verb) for verb in VERBS[:-1]
    },
}


@each_person
def test_nothing_of_a_hidden_row_is_on_any_page(way, world, person):
    other = User.objects.create_user("other")
    for job, message in ((world.hidden_job, "Retried for the rival."), (world.inside, "Retried.")):
        LogEntry.objects.log_actions(other.pk, [job], CHANGE, message)
    client = browser(*PEOPLE[person])
    replies = {title: client.get(page(world)) for title, page in PAGES.items()}
    assert {reply.status_code for reply in replies.values()} <= {200, 302, 403, 404}
    found = {title: world.leaks(everything_of(reply)) for title, reply in replies.items()}
    assert {title: words for title, words in found.items() if words} == {}


def test_the_same_pages_show_visible_rows(superuser, world):
    """Check that the previous test can fail."""
    replies = {title: superuser.get(page(world), follow=True) for title, page in PAGES.items()}
    found = {title for title, reply in replies.items() if world.leaks(everything_of(reply))}
    pages = {title for title in PAGES if not title.startswith(VERBS)}
    assert pages - found == {"job: beside a hidden step", "chain's history", "job's history"}


#: Addresses that contain the id of a hidden row. The responses must be the same as for a missing row.
NAMED = {
    **{
        f"{model}: {name}": lambda id_, model=model, name=name: page(model, id_, name)
        for model in ("chain", "job")
        for name in ("change", "history", *(VERBS if model == "chain" else VERBS[:-1]))
    },
    **{
        f"{model}: {title}": lambda id_, model=model, query=query: listed(model, **query(id_))
        for model in ("chain", "job")
        for title, query in {
            "that wait for it": lambda id_: {"blocked_by": id_},
            "by id": lambda id_: {"q": id_},
            "by the start of an id": lambda id_: {"q": id_[:20]},
        }.items()
    },
}


@each_person
def test_a_hidden_row_is_like_a_missing_one(way, world, person):
    client = browser(*PEOPLE[person])
    hidden = {job.pk for job in Job.objects.filter(type_name="rival.type", status__in=("blocked", "running"))}
    for title, address in NAMED.items():
        absent = _answer(client, address, str(new_id()))
        for id_ in {*hidden, world.hidden_chain.pk, *([world.hidden_job.pk] if title.startswith("job") else ())}:
            assert _answer(client, address, str(id_)) == absent, title


def _answer(client, address, id_):
    """Return a response without the id."""
    reply = client.get(address(id_))
    client.cookies.pop("messages", None)
    text = re.sub(r'name="csrfmiddlewaretoken" value="\w+"', "", everything_of(reply))
    return reply.status_code, text.replace(id_, "ID").replace(id_[:20], "START")


def test_the_id_of_a_hidden_step_does_not_lead_to_its_chain(way, world, operator):
    assert operator.get(page("chain", world.hidden_job.pk))["Location"] == reverse("admin:index")
    visible = world.stepped[2].pk
    assert operator.get(page("chain", visible))["Location"].endswith(f"#step-{visible}")


@pytest.mark.parametrize(
    ("permissions", "steps", "note"),
    [(("view_chain", "view_job"), 2, "1 step that you may"), (("view_chain",), 0, "3 steps that you may")],
)
def test_hidden_steps_are_replaced_by_a_note(way, world, permissions, steps, note):
    shown = everything_of(browser(*permissions).get(page("chain", world.stepped[0].pk)))
    assert shown.count('class="jobchains-step"') == steps
    assert f"{note} not view" in shown


def test_a_graph_does_not_name_hidden_steps_of_blockers(way, reader):
    [waiting], at_hidden = own("blocked"), rows.chain(2, "blocked", OWN)
    Job.objects.filter(pk=at_hidden[1].pk).update(type_name="rival.step")
    rows.waits(waiting, at_hidden)
    rows.waits(at_hidden[1], own("running"))
    shown = everything_of(reader.get(page("chain", waiting.pk)))
    assert (str(at_hidden[0].pk) in shown, "rival" in shown, str(at_hidden[1].pk) in shown) == (True, False, False)


def test_the_time_of_a_hidden_step_is_not_on_the_page_of_its_chain(way, reader):
    first, step = rows.chain(2, "pending", OWN, run_at=datetime.now(UTC) + timedelta(days=3))
    assert "due <time" in everything_of(reader.get(page("chain", first.pk)))
    Job.objects.filter(pk=step.pk).update(type_name="rival.step")
    assert "due <time" not in everything_of(reader.get(page("chain", first.pk)))


@pytest.mark.parametrize("model", ["chain", "job", "schedule"])
def test_without_a_permission_the_history_of_a_row_is_like_that_of_a_missing_one(db, model):
    schedules.create("nightly", "shop.own", every=60)
    chain = Chain.objects.get(pk=own()[0].pk)
    ids = {"schedule": ["nightly", "none"]}.get(model, [chain.pk, new_id()])
    client = browser("view_limitoverride")
    addresses = [reverse(f"admin:django_jobchains_{model}_history", args=[id_]) for id_ in ids]
    assert [client.get(address).status_code for address in addresses] == [403, 403]


def test_a_chain_at_a_hidden_step_has_no_buttons(way, world, operator):
    shown = everything_of(operator.get(page("chain", world.ends_hidden[0].pk)))
    assert not [verb for verb in VERBS if f"/{verb}/" in shown]


def test_visible_rows_are_on_all_lists(way, world, reader):
    for name, model in (("chain", Chain), ("job", Job)):
        expected = model.objects.filter(type_name=OWN)
        assert expected.count() == 5 + (name == "job") * 2
        assert set(open_list(reader, name).ids) == {str(row.pk) for row in expected}


def test_a_page_with_many_hidden_rows_is_filled(way, reader):
    [mine] = own()
    for _ in range(120):
        rows.chain(1, type_name="rival.type")
    assert open_list(reader, "chain").ids == [str(mine.pk)]


def test_dependents_are_paged_past_hidden_ones_and_by_visible_ids(way, reader):
    [awaited], wanted = own(), []
    for _ in range(12):
        for _hidden in range(2):
            rows.waits(rival("blocked")[0], [awaited])
        [waiting], stepped = own("blocked"), rows.chain(2, "blocked", OWN)
        Job.objects.filter(pk=stepped[1].pk).update(type_name="rival.step")
        for job in (waiting, stepped[1]):
            rows.waits(job, [awaited])
            wanted.append(str(job.chain_id))
    first = everything_of(reader.get(page("chain", awaited.pk)))
    [link] = re.findall(r'href="([^"]+dependents=[^"]+)"', first)
    hidden = map(str, Job.objects.filter(type_name__startswith="rival.").values_list("pk", flat=True))
    assert not [id_ for id_ in hidden if id_ in link]
    rest = everything_of(reader.get(html.unescape(link)))
    assert [id_ for id_ in wanted if id_ not in first and id_ not in rest] == []
