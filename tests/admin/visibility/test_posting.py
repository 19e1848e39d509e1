"""No POST request changes or names a hidden row, for each action, set of permissions and kind of hidden row."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.admin.models import LogEntry
from django.db import transaction
from django.test import Client

from django_jobchains.db.ids import new_id
from django_jobchains.models import Job
from tests.admin.actions.browsing import PERMISSIONS, act_many, answers, messages_in, ticked, url
from tests.admin.visibility.test_pages import everything_of, leaks
from tests.admin.visibility.world import PEOPLE, World, browser

pytestmark = pytest.mark.django_db

#: The model of a list, and the id of a row that is hidden or partly hidden.
Row = tuple[str, Callable[[World], UUID]]
HIDDEN: dict[str, Row] = {
    "a chain": ("chain", lambda world: world.hidden_chain.pk),
    "a job": ("job", lambda world: world.ends_hidden[1].pk),
}
PARTLY_HIDDEN: dict[str, Row] = {
    "a chain at a hidden step": ("chain", lambda world: world.ends_hidden[0].pk),
    "a job of a hidden chain": ("job", lambda world: world.inside.pk),
}
ROWS = {**HIDDEN, **PARTLY_HIDDEN}


def _address(name: str, model: str, id_: UUID) -> str:
    return url(name, Job(pk=id_), model)


Post = Callable[[Client, str, str, UUID, dict[str, Any]], Any]
POSTS: dict[str, Post] = {
    "one": lambda client, verb, model, id_, answer: client.post(_address(verb, model, id_), answer),
    "many": lambda client, verb, model, id_, answer: act_many(client, verb, [id_], model, **answer),
    "ask": lambda client, verb, model, id_, answer: act_many(client, verb, [id_], model, ask="1", **answer),
    "list": lambda client, verb, model, id_, answer: client.post(
        url("changelist", model=model), {"action": verb, "index": "0", "select_across": "0", **ticked([id_])}
    ),
}
ACTING = ("one", "many")
CASES = [
    (verb, row, post)
    for verb in PERMISSIONS
    for row in ROWS
    for post in POSTS
    if (verb, ROWS[row][0]) != ("delete", "job")
]


def make_possible(verb: str, world: World) -> None:
    """Make the action possible, except that the rows are hidden."""
    jobs = Job.objects.filter(pk__in=[world.inside.pk, world.ends_hidden[1].pk])
    status = "failed" if verb == "retry" else "pending"
    jobs.update(status=status, run_at=datetime.now(UTC) + timedelta(hours=1))


def answer_for(verb: str, row: str, world: World) -> dict[str, Any]:
    return answers(verb, world.ends_hidden[1] if row in ("a job", "a chain at a hidden step") else world.inside)


def stored() -> list[Any]:
    return [list(Job.objects.order_by("pk").values()), LogEntry.objects.count()]


def replied(reply: Any, id_: UUID) -> tuple[int, list[str]]:
    return reply.status_code, [message.replace(str(id_), "ID") for message in messages_in(reply)]


@pytest.mark.slow
@pytest.mark.parametrize("person", PEOPLE)
def test_no_post_changes_or_names_a_hidden_row(way, world, person):
    client = browser(*PEOPLE[person])
    for verb, row, post in CASES:
        make_possible(verb, world)
        model, find = ROWS[row]
        id_, answer, before = find(world), answer_for(verb, row, world), stored()
        client.cookies.pop("messages", None)
        reply = POSTS[post](client, verb, model, id_, answer)
        case = f"{verb}: {row}, {post}"
        assert reply.status_code in {200, 302, 403, 404}, case
        assert stored() == before, case
        text = everything_of(reply) + " ".join(messages_in(reply))
        assert leaks(world, text.replace(str(id_), "").replace(id_.hex, "")) == [], case
        if row in HIDDEN and post in ACTING:
            client.cookies.pop("messages", None)
            absent = new_id()
            expected = POSTS[post](client, verb, model, absent, answer)
            assert replied(reply, id_) == replied(expected, absent), case


def test_the_same_posts_change_visible_rows(superuser, world):
    """Check that the previous test can fail."""
    for verb, row, post in CASES:
        if post not in ACTING:
            continue
        with transaction.atomic():
            make_possible(verb, world)
            model, find = ROWS[row]
            before = stored()
            POSTS[post](superuser, verb, model, find(world), answer_for(verb, row, world))
            assert stored() != before, (verb, row, post)
            transaction.set_rollback(True)
