"""An action does not change a chain that continues with a hidden step between the check and the statement."""

from contextlib import contextmanager
from unittest.mock import patch

import pytest

from django_jobchains import chains
from django_jobchains.admin.actions.row_actions import CHAIN_ACTIONS
from django_jobchains.models import Job
from tests.admin.browsing import PERMISSIONS, act, act_many, answers, messages_in
from tests.admin.visibility.world import OWN, own
from tests.support.connections import end_all, holding, waiting

CLASSES = {verb.name: type(verb) for verb in CHAIN_ACTIONS}
POSTS = {
    "chain": lambda client, verb, job: act(client, verb, job),
    "job": lambda client, verb, job: act(client, verb, job, "job"),
    "chains": lambda client, verb, job: act_many(client, verb, [job], **answers(verb, job)),
    "jobs": lambda client, verb, job: act_many(client, verb, [job], "job", **answers(verb, job)),
}


def go_on(job, to=OWN):
    """Continue the job's chain with a step of this type, which can be changed as the job could be."""
    if job.status == "failed":
        chains.retry(job)
    with chains.current_job(job.chain_id) as current:
        current.continue_with(OWN, delay=3600)
    if job.status == "failed":
        chains.cancel(job)
    Job.objects.filter(chain_id=job.chain_id, chain_index=1).update(type_name=to)


def steps_of(job):
    return list(Job.objects.filter(chain_id=job.chain_id).order_by("chain_index").values_list("type_name", "status"))


@contextmanager
def before_it_begins(verb, meanwhile):
    """Call ``meanwhile`` after an action has checked its targets, but before its transaction begins."""
    expand = CLASSES[verb].expand

    def then(*args):
        targets = expand(*args)
        meanwhile()
        return targets

    with patch.object(CLASSES[verb], "expand", then):
        yield


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("verb", "post"),
    [(verb, post) for verb in PERMISSIONS for post in POSTS if not (verb == "delete" and "job" in post)],
)
def test_a_hidden_step_is_not_changed(way, operator, verb, post):
    [job] = own("failed" if verb == "retry" else "pending")
    with before_it_begins(verb, lambda: go_on(job, to="rival.step")):
        reply = POSTS[post](operator, verb, job)
    unchanged = "cancelled" if verb == "retry" else "pending"
    assert steps_of(job) == [(OWN, "completed"), ("rival.step", unchanged)]
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
    assert steps_of(job) == ([] if verb == "delete" else [(OWN, "completed"), (OWN, "cancelled")])


@pytest.mark.django_db
@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_rows_selected_together_with_a_hidden_step_are_not_changed(way, operator, verb):
    [job], [other] = own(), own()
    with before_it_begins(verb, lambda: go_on(job, to="rival.step")):
        reply = act_many(operator, verb, [other, job])
    assert messages_in(reply) == [f"Nothing was changed: the chain has continued with another job ({job.pk})."]
    assert steps_of(other) == [(OWN, "pending")]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_an_action_waits_for_a_continuing_chain_and_checks_again(way, operator, verb):
    [job] = own()
    worker = holding(lambda store: go_on(job, to="rival.step"))
    user = waiting(lambda store: act(operator, verb, job))
    worker.result()
    user.result()
    end_all()
    assert steps_of(job) == [(OWN, "completed"), ("rival.step", "pending")]
