"""An action does not change a chain that continues with a hidden step between the check and the statement."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest
from django.test import Client

from django_jobchains import chains
from django_jobchains.admin.actions.row_actions import CHAIN_ACTIONS
from django_jobchains.models import Chain, Job
from tests.admin.actions.browsing import PERMISSIONS, act, act_many, answers, messages_in, url
from tests.admin.visibility.world import OWN, PEOPLE, browser, own
from tests.support.connections import end_all, holding, waiting

CLASSES = {verb.name: type(verb) for verb in CHAIN_ACTIONS}
Post = Callable[[Client, str, Job], Any]
POSTS: dict[str, Post] = {
    "chain": lambda client, verb, job: act(client, verb, chains.get(job.chain_id)),
    "job": lambda client, verb, job: client.post(url(verb, job, "job"), answers(verb, job)),
    "chains": lambda client, verb, job: act_many(client, verb, [job], **answers(verb, job)),
    "jobs": lambda client, verb, job: act_many(client, verb, [job], "job", **answers(verb, job)),
}
EVERY_POST = pytest.mark.parametrize(
    ("verb", "post"),
    [(verb, post) for verb in PERMISSIONS for post in POSTS if not (verb == "delete" and "job" in post)],
)


@pytest.fixture
def operator(db):
    return browser(*PEOPLE["may do all"])


def go_on(job: Job, *, to: str = OWN) -> None:
    """Continue the job's chain with a step of this type, which can be changed as the job could be."""
    if job.status == "failed":
        chains.retry(job)
    with chains.current_job(job.chain_id) as current:
        current.continue_with(OWN, delay=3600)
    if job.status == "failed":
        chains.cancel(job)
    Job.objects.filter(chain_id=job.chain_id, chain_index=1).update(type_name=to)


def steps_of(job: Job) -> list[Any]:
    return list(Job.objects.filter(chain_id=job.chain_id).order_by("chain_index").values())


@contextmanager
def before_it_begins(verb: str, meanwhile: Callable[[], None]) -> Iterator[None]:
    """Call ``meanwhile`` after an action has checked its targets, but before its transaction begins."""
    expand = CLASSES[verb].expand

    def then(*args: Any) -> Any:
        targets = expand(*args)
        meanwhile()
        return targets

    with patch.object(CLASSES[verb], "expand", then):
        yield


@pytest.mark.django_db
@EVERY_POST
def test_a_hidden_step_is_not_changed(way, operator, verb, post):
    [job] = own("failed" if verb == "retry" else "pending")
    with before_it_begins(verb, lambda: go_on(job, to="rival.step")):
        reply = POSTS[post](operator, verb, job)
    assert [(step["type_name"], step["status"]) for step in steps_of(job)] == [
        (OWN, "completed"),
        ("rival.step", "cancelled" if verb == "retry" else "pending"),
    ]
    [message] = messages_in(reply)
    assert message.startswith(("Nothing was changed: ", "1 row skipped: "))
    assert "rival" not in message


@pytest.mark.django_db
@pytest.mark.parametrize("post", ["chain", "chains"])
@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_a_visible_step_is_changed(way, operator, verb, post):
    """Otherwise, a chain of many short steps could not be stopped."""
    [job] = own()
    with before_it_begins(verb, lambda: go_on(job)):
        POSTS[post](operator, verb, job)
    assert [step["status"] for step in steps_of(job)] == ([] if verb == "delete" else ["completed", "cancelled"])


@pytest.mark.django_db
@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_rows_selected_together_with_a_hidden_step_are_not_changed(way, operator, verb):
    [job], [other] = own(), own()
    with before_it_begins(verb, lambda: go_on(job, to="rival.step")):
        reply = act_many(operator, verb, [other, job])
    assert messages_in(reply) == [f"Nothing was changed: the chain has continued with another job ({job.pk})."]
    assert [step["status"] for step in steps_of(other)] == ["pending"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_an_action_waits_for_a_continuing_chain_and_checks_again(way, operator, verb):
    [job] = own()
    worker = holding(lambda store: go_on(job, to="rival.step"))
    user = waiting(lambda store: act(operator, verb, Chain.objects.get(pk=job.chain_id)))
    worker.result()
    user.result()
    end_all()
    assert [step["status"] for step in steps_of(job)] == ["completed", "pending"]
