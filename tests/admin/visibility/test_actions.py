"""No action changes or names a hidden row, for each request, set of permissions and kind of hidden row."""

import pytest
from django.contrib.admin.models import LogEntry
from django.db import transaction
from django.urls import reverse

from django_jobchains import chains
from django_jobchains.admin import ChainAdmin, JobAdmin
from django_jobchains.db.ids import new_id
from django_jobchains.models import Job
from django_jobchains.processors import JobType, get_registry
from tests.admin import rows
from tests.admin.browsing import (
    PERMISSIONS,
    act,
    act_many,
    answers,
    browser,
    choose_action,
    messages_in,
    text_of,
    url,
)
from tests.admin.visibility.world import (
    PEOPLE,
    _ByQuery,
    _ByRow,
    each_person,
    everything_of,
    hidden_rows,
    own,
    rival,
    state_for,
)

pytestmark = pytest.mark.django_db

#: Rows that are hidden or partly hidden: for each, its model, the job that an action on it would change, and the row.
HIDDEN = {
    "a chain": ("chain", lambda world: world.inside, lambda world: world.hidden_chain),
    "a job": ("job", lambda world: world.ends_hidden[1], lambda world: world.ends_hidden[1]),
}
PARTLY_HIDDEN = {
    "a chain at a hidden step": ("chain", lambda world: world.ends_hidden[1], lambda world: world.ends_hidden[0]),
    "a job of a hidden chain": ("job", lambda world: world.inside, lambda world: world.inside),
}
ROWS = {**HIDDEN, **PARTLY_HIDDEN}
POSTS = {
    "one": lambda client, verb, model, row, answer: act(client, verb, row, model, **answer),
    "many": lambda client, verb, model, row, answer: act_many(client, verb, [row], model, **answer),
    "ask": lambda client, verb, model, row, answer: act_many(client, verb, [row], model, ask="1", **answer),
    "list": lambda client, verb, model, row, answer: choose_action(client, verb, [row], model),
}
CASES = [
    (verb, row, post)
    for verb in PERMISSIONS
    for row in ROWS
    for post in POSTS
    if (verb, ROWS[row][0]) != ("delete", "job")
]


def prepared(verb, name, world):
    """Make the action possible, except that the row is hidden. Return its model, the row, and the answer."""
    Job.objects.filter(pk__in=[world.inside.pk, world.ends_hidden[1].pk]).update(**state_for(verb))
    model, job_of, row_of = ROWS[name]
    return model, row_of(world), answers(verb, job_of(world))


def stored():
    return [list(Job.objects.order_by("pk").values()), LogEntry.objects.count()]


def replied(reply, row):
    return reply.status_code, [message.replace(str(row.pk), "ID") for message in messages_in(reply)]


@each_person
def test_no_post_changes_or_names_a_hidden_row(way, world, person):
    client = browser(*PEOPLE[person])
    for verb, name, post in CASES:
        case = f"{verb}: {name}, {post}"
        model, row, answer = prepared(verb, name, world)
        before = stored()
        client.cookies.pop("messages", None)
        reply = POSTS[post](client, verb, model, row, answer)
        assert reply.status_code in {200, 302, 403, 404}, case
        assert stored() == before, case
        text = everything_of(reply) + " ".join(messages_in(reply))
        assert world.leaks(text.replace(str(row.pk), "").replace(row.pk.hex, "")) == [], case
        client.cookies.pop("messages", None)
        if name in HIDDEN and post in ("one", "many"):
            absent = Job(pk=new_id())
            assert replied(POSTS[post](client, verb, model, absent, answer), absent) == replied(reply, row), case
        elif person == "may do all" and post in ("one", "many"):
            is_one = post == "one"
            assert replied(reply, row) == ((403, []) if is_one else (302, ["1 row skipped: not allowed (ID)."])), case


def test_the_same_posts_change_visible_rows(superuser, world):
    """Check that the previous test can fail."""
    for verb, name, post in CASES:
        if post in ("one", "many"):
            with transaction.atomic():
                model, row, answer = prepared(verb, name, world)
                before = stored()
                POSTS[post](superuser, verb, model, row, answer)
                assert stored() != before, (verb, name, post)
                transaction.set_rollback(True)


@pytest.mark.parametrize("verb", PERMISSIONS)
def test_only_visible_rows_are_changed(way, operator, model, verb):
    if (verb, model) == ("delete", "job"):
        return  # there is no such action
    [mine], [hidden] = own(**state_for(verb)), rival(**state_for(verb))
    before, own_before = hidden_rows(), list(Job.objects.filter(pk=mine.pk).values())
    page = text_of(choose_action(operator, verb, [mine, hidden], model))
    assert "rival" not in page.lower()
    assert page.count(str(hidden.pk)) == page.count(f'value="{hidden.pk}"'), "the id may be only in the submitted form"
    reply = act_many(operator, verb, [mine, hidden], model, **answers(verb, mine))
    assert "1 row skipped: no longer exists" in " ".join(messages_in(reply))
    assert hidden_rows() == before
    assert list(Job.objects.filter(pk=mine.pk).values()) != own_before


def test_a_chain_with_a_hidden_step_is_not_deleted(way, operator, world):
    assert act(operator, "delete", world.stepped[0]).status_code == 403
    assert Job.objects.filter(chain_id=world.stepped[0].pk).count() == 3


def test_a_cascade_to_hidden_chains_is_refused_and_not_counted(way, operator):
    [mine] = own("completed")
    rows.waits(mine, *[rival("completed") for _ in range(7)])
    before = hidden_rows()
    page = text_of(operator.get(url("delete", mine)))
    assert "The selected chains waited for chains that you may not delete." in page
    assert "7" not in page.split("What will be deleted")[1].split("</ul>")[0]
    reply = act(operator, "delete", mine, cascade="on")
    assert messages_in(reply) == ["Nothing was changed: the chains waited for chains that you may not delete."]
    assert hidden_rows() == before
    assert messages_in(act(operator, "delete", mine))[-1] == "1 chain deleted."


def test_the_blocker_of_a_hidden_job_can_be_cancelled_but_not_deleted(way, operator, world):
    """A hidden job follows its own ``on_blocker_failure``, as it would if the chain had failed."""
    before = hidden_rows()
    for verb in ("delete", "cancel"):
        assert world.leaks(" ".join(messages_in(act(operator, verb, world.plain)))) == []
    assert Job.objects.get(pk=world.plain.pk).status == "cancelled"
    assert hidden_rows() == before


def test_a_hidden_chain_with_the_same_key_is_not_named(way, operator, monkeypatch):
    rival(key="k")
    for mixin in (_ByQuery, _ByRow):
        monkeypatch.setattr(mixin, "entry_types", lambda self, request: {"rival.type": JobType("rival.type")})
    address = reverse("admin:django_jobchains_chain_enqueue")
    reply = operator.post(f"{address}?type=rival.type", {"payload": "1", "deduplication_key": "k"})
    assert reply["Location"] == address


# The types that a chain may continue with

TYPES = {
    "shop.free": JobType("shop.free"),
    "shop.bound": JobType("shop.bound", continues_with=["shop.inner", "shop.joins"]),
    "shop.inner": JobType("shop.inner", entry=False),
    "shop.other": JobType("shop.other", entry=False),
    "shop.joins": JobType("shop.joins", blockers=("shop.other",)),  # The form has no fields for blockers.
}
ANY, BOTH = set(TYPES), {"shop.free", "shop.bound"}


@pytest.mark.parametrize(
    ("type_name", "may_enqueue", "entries", "hook", "allowed"),
    [
        ("shop.free", True, {*BOTH, "shop.joins"}, None, BOTH),
        ("shop.gone", True, BOTH, None, BOTH),
        ("shop.bound", True, BOTH, None, {"shop.inner"}),
        # ``complete_job`` does not imply ``enqueue_job``.
        ("shop.bound", False, BOTH, None, set()),
        # The admin class of chains decides which entry types a user may choose, but not which types are declared.
        ("shop.free", True, {"shop.free"}, None, {"shop.free"}),
        ("shop.gone", True, {"shop.free"}, None, {"shop.free"}),
        ("shop.bound", True, set(), None, {"shop.inner"}),
        # ``next_types`` of a subclass grants what the type allows, also what cannot be enqueued.
        ("shop.bound", False, BOTH, ANY, {"shop.inner"}),
        ("shop.free", False, set(), {"shop.free"}, {"shop.free"}),
    ],
)
def test_a_chain_continues_only_with_allowed_types(monkeypatch, model, type_name, may_enqueue, entries, hook, allowed):
    monkeypatch.setattr(get_registry(), "declared", TYPES)
    monkeypatch.setattr(ChainAdmin, "entry_types", lambda self, request: {name: TYPES[name] for name in entries})
    for admin_class in (ChainAdmin, JobAdmin) if hook is not None else ():
        monkeypatch.setattr(admin_class, "next_types", lambda self, request, job: {name: TYPES[name] for name in hook})
    [job] = rows.chain(1, type_name=type_name)
    client = browser("view_chain", "view_job", "complete_job", *(["enqueue_job"] if may_enqueue else []))
    choices = client.get(url("complete", job, model)).context["type_form"].fields["type"].choices
    assert {name for name, _label in choices} - {""} == allowed
    for refused in ANY - allowed:
        answer = {**answers("complete", job), "type": refused, "payload": "1"}
        assert act(client, "complete", job, model, **answer).context["form"].errors["type"]
        act_many(client, "complete", [job], model, **answer)
        assert [step.status for step in chains.get(job.chain_id).jobs] == ["pending"], refused
    for name in [*allowed][:1] or [""]:
        assert messages_in(act(client, "complete", job, model, type=name, payload="1")) == ["1 job completed."]
        assert [step.type_name for step in chains.get(job.chain_id).jobs] == [type_name, *filter(None, [name])]
