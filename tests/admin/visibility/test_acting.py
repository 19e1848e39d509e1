"""Actions on several rows neither change nor name hidden rows."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_jobchains import chains
from django_jobchains.models import Chain, Job
from django_jobchains.processors import JobType, get_registry
from tests.admin.actions.browsing import PERMISSIONS, act, act_many, answers, choose_action, messages_in, text_of, url
from tests.admin.pages import rows
from tests.admin.visibility.test_pages import leaks
from tests.admin.visibility.world import OWN, PEOPLE, browser, hidden_rows, own, rival

pytestmark = pytest.mark.django_db
EVERY_VERB = pytest.mark.parametrize("verb", PERMISSIONS)


@pytest.fixture
def operator():
    return browser(*PEOPLE["may do all"])


def state_for(verb: str) -> dict[str, Any]:
    later = datetime.now(UTC) + timedelta(hours=1)
    return {"status": "failed" if verb == "retry" else "pending", "run_at": later}


def chain_of(job: Job) -> Chain:
    return chains.get(job.chain_id)


@EVERY_VERB
@pytest.mark.parametrize("model", ["chain", "job"])
def test_only_visible_rows_are_changed(way, operator, verb, model):
    if (verb, model) == ("delete", "job"):
        return  # there is no such action
    (mine,), (hidden,) = own(**state_for(verb)), rival(**state_for(verb))
    before, own_before = hidden_rows(), Job.objects.filter(pk=mine.pk).values()[0]
    page = text_of(choose_action(operator, verb, [mine, hidden], model))
    assert "rival" not in page.lower()
    assert page.count(str(hidden.pk)) == page.count(f'value="{hidden.pk}"'), "the id may be only in the submitted form"
    reply = act_many(operator, verb, [mine, hidden], model, **answers(verb, mine))
    assert "1 row skipped: no longer exists" in " ".join(messages_in(reply))
    assert hidden_rows() == before
    assert list(Job.objects.filter(pk=mine.pk).values()) != [own_before]


@EVERY_VERB
def test_a_chain_whose_current_job_is_hidden_is_not_changed(way, operator, verb):
    jobs = rows.chain(2, type_name=OWN, **state_for(verb))
    Job.objects.filter(pk=jobs[1].pk).update(type_name="rival.step")
    before = hidden_rows()
    assert operator.get(url(verb, chain_of(jobs[0]))).status_code == 403
    assert act(operator, verb, chain_of(jobs[0])).status_code == 403
    reply = act_many(operator, verb, [jobs[0]], **answers(verb, jobs[1]))
    assert messages_in(reply) == [f"1 row skipped: not allowed ({jobs[0].pk})."]
    assert hidden_rows() == before
    assert not any(f"/{verb}/" in text for text in [text_of(operator.get(url("change", chain_of(jobs[0]))))])


@pytest.mark.parametrize("verb", [verb for verb in PERMISSIONS if verb != "delete"])
def test_a_job_of_a_hidden_chain_is_not_changed(way, operator, verb):
    jobs = rows.chain(2, type_name="rival.type", **state_for(verb))
    Job.objects.filter(pk=jobs[1].pk).update(type_name=OWN)
    before = hidden_rows()
    assert operator.post(url(verb, jobs[1], "job"), answers(verb, jobs[1])).status_code == 403
    reply = act_many(operator, verb, [jobs[1]], "job", **answers(verb, jobs[1]))
    assert messages_in(reply) == [f"1 row skipped: not allowed ({jobs[1].pk})."]
    assert hidden_rows() == before


def test_a_chain_with_a_hidden_step_is_not_deleted(way, operator, world):
    assert act(operator, "delete", chain_of(world.stepped[0])).status_code == 403
    assert Job.objects.filter(chain_id=world.stepped[0].pk).count() == 3


def test_a_cascade_to_hidden_chains_is_refused_and_not_counted(way, operator, world):
    [mine] = own("completed")
    rows.waits(mine, *[rival("completed") for _ in range(7)])
    before = hidden_rows()
    page = text_of(operator.get(url("delete", chain_of(mine))))
    assert "The selected chains waited for chains that you may not delete." in page
    assert "7" not in page.split("What will be deleted")[1].split("</ul>")[0]
    reply = act(operator, "delete", chain_of(mine), cascade="on")
    assert messages_in(reply) == ["Nothing was changed: the chains waited for chains that you may not delete."]
    assert hidden_rows() == before
    assert messages_in(act(operator, "delete", chain_of(mine)))[-1] == "1 chain deleted."


def test_the_blocker_of_a_hidden_job_can_be_cancelled_but_not_deleted(way, operator, world):
    """A hidden job follows its own ``on_blocker_failure``, as it would if the chain had failed."""
    before = hidden_rows()
    for reply in (act(operator, "delete", chain_of(world.plain)), act(operator, "cancel", chain_of(world.plain))):
        assert leaks(world, " ".join(messages_in(reply))) == []
    assert chain_of(world.plain).status == "cancelled"
    assert hidden_rows() == before


def test_a_hidden_chain_with_the_same_key_is_not_named(way, operator, monkeypatch):
    from tests.admin.visibility.world import _Own

    rival(key="k")
    monkeypatch.setattr(_Own, "entry_types", lambda self, request: {"rival.type": JobType("rival.type")})
    address = reverse("admin:django_jobchains_chain_enqueue")
    reply = operator.post(f"{address}?type=rival.type", {"payload": "1", "deduplication_key": "k"})
    assert reply["Location"] == address


# The types that a chain may continue with


@pytest.fixture
def _types(monkeypatch):
    types: list[JobType[Any, Any]] = [
        JobType("shop.free"),
        JobType("shop.bound", continues_with=["shop.inner"]),
        JobType("shop.inner", entry=False),
        JobType("shop.other", entry=False),
    ]
    monkeypatch.setattr(get_registry(), "declared", {each.name: each for each in types})


def offered(client: Client, chain: Chain) -> set[str]:
    reply: Any = client.get(url("complete", chain))
    return {name for name, _label in reply.context["type_form"].fields["type"].choices} - {""}


@pytest.mark.usefixtures("_types")
@pytest.mark.parametrize(
    ("type_name", "allowed"),
    [
        ("shop.free", {"shop.free", "shop.bound"}),
        ("shop.bound", {"shop.inner"}),
        ("shop.gone", {"shop.free", "shop.bound"}),
    ],
)
def test_a_chain_continues_with_entry_types_or_declared_types(type_name, allowed):
    [job] = rows.chain(1, type_name=type_name)
    client = browser("view_chain", "view_job", "complete_job", "enqueue_job")
    assert offered(client, chain_of(job)) == allowed
    for refused in ("shop.other", *({"shop.inner"} - allowed)):
        act(client, "complete", chain_of(job), type=refused, payload="1")
        assert [step.status for step in chain_of(job).jobs] == ["pending"], refused


@pytest.mark.usefixtures("_types")
def test_complete_job_does_not_imply_enqueue_job():
    [job] = rows.chain(1, type_name="shop.bound")
    client = browser("view_chain", "view_job", "complete_job")
    assert offered(client, chain_of(job)) == set()
    reply: Any = act(client, "complete", chain_of(job), type="shop.inner", payload="1")
    assert reply.context["form"].errors["type"]
    assert [step.status for step in chain_of(job).jobs] == ["pending"]
    assert messages_in(act(client, "complete", chain_of(job))) == ["1 job completed."]


@pytest.mark.usefixtures("_types")
def test_a_hook_grants_a_continuation_that_the_type_allows(monkeypatch):
    from django_jobchains.admin import ChainAdmin

    types = get_registry().job_types()
    monkeypatch.setattr(ChainAdmin, "next_types", lambda self, request, job: types)
    [job] = rows.chain(1, type_name="shop.bound")
    client = browser("view_chain", "view_job", "complete_job")
    assert offered(client, chain_of(job)) == {"shop.inner"}
    assert messages_in(act(client, "complete", chain_of(job), type="shop.inner", payload="1")) == ["1 job completed."]
    assert [step.type_name for step in chain_of(job).jobs] == ["shop.bound", "shop.inner"]


def _narrow_entry_types(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    from django_jobchains.admin import ChainAdmin

    types = {name: get_registry().job_type(name) for name in names}
    monkeypatch.setattr(ChainAdmin, "entry_types", lambda self, request: types)


@pytest.mark.usefixtures("_types")
@pytest.mark.parametrize("model", ["chain", "job"])
@pytest.mark.parametrize("type_name", ["shop.free", "shop.gone"])
def test_a_chain_does_not_continue_with_an_entry_type_that_is_not_offered(monkeypatch, model, type_name):
    """The admin class of chains decides which entry types a user may choose, also on the pages of jobs."""
    _narrow_entry_types(monkeypatch, "shop.free")
    [job] = rows.chain(1, type_name=type_name)
    client = browser("view_chain", "view_job", "complete_job", "enqueue_job")
    foreign = {**answers("complete", job), "type": "shop.bound", "payload": "1"}
    reply: Any = client.post(url("complete", job, model), foreign)
    assert reply.context["form"].errors["type"]
    act_many(client, "complete", [job], model, **foreign)
    assert [(step.type_name, step.status) for step in chain_of(job).jobs] == [(type_name, "pending")]
    page: Any = client.get(url("complete", job, model))
    assert {name for name, _label in page.context["type_form"].fields["type"].choices} == {"", "shop.free"}
    assert messages_in(client.post(url("complete", job, model), {**foreign, "type": "shop.free"})) == [
        "1 job completed."
    ]
    assert [step.type_name for step in chain_of(job).jobs] == [type_name, "shop.free"]


@pytest.mark.usefixtures("_types")
def test_declared_continuations_need_not_be_entry_types(monkeypatch):
    _narrow_entry_types(monkeypatch)
    [job] = rows.chain(1, type_name="shop.bound")
    client = browser("view_chain", "view_job", "complete_job", "enqueue_job")
    assert offered(client, chain_of(job)) == {"shop.inner"}


@pytest.mark.usefixtures("_types")
def test_a_hook_offers_an_entry_type_that_cannot_be_enqueued(monkeypatch):
    from django_jobchains.admin import ChainAdmin

    _narrow_entry_types(monkeypatch)
    types = {"shop.free": get_registry().job_type("shop.free")}
    monkeypatch.setattr(ChainAdmin, "next_types", lambda self, request, job: types)
    [job] = rows.chain(1, type_name="shop.free")
    assert offered(browser("view_chain", "view_job", "complete_job"), chain_of(job)) == {"shop.free"}
