"""The statuses in which each action is possible, and the reasons why it is not."""

from typing import Any

import pytest

from django_jobchains.admin.actions.row_actions import ChainActionAdmin, JobActionAdmin
from django_jobchains.chains import Chain
from django_jobchains.models import Job
from tests.admin.actions.browsing import PERMISSIONS, act, act_many, answers, messages_in, text_of, url
from tests.support.chains import STATES, everything, go_on

OPEN = {"blocked", "pending", "scheduled", "backing_off", "running", "asked_to_stop"}
PENDING = {"pending", "scheduled", "backing_off"}
POSSIBLE: dict[str, set[str]] = {
    "complete": OPEN,
    "retry": {"failed", "cancelled"},
    "run_now": PENDING,
    "reschedule": PENDING,
    "cancel": OPEN - {"asked_to_stop"},
    "delete": set(STATES),
}
REASONS = {
    "blocked": "waits for other chains",
    "pending": "pending",
    "scheduled": "pending",
    "backing_off": "pending",
    "running": "running",
    "asked_to_stop": "running",
    "completed": "already completed",
    "failed": "failed",
    "cancelled": "cancelled",
}

every_status = pytest.mark.parametrize("state", STATES)


@every_status
@pytest.mark.parametrize("verb", PERMISSIONS)
def test_an_action_depends_on_the_status_and_reports_the_reason(superuser, store, verb, state):
    chain = STATES[state](store).refresh()
    before = everything()
    is_possible = state in POSSIBLE[verb]
    reply = act(superuser, verb, chain)
    assert reply.status_code == 302
    assert (everything() != before) is is_possible
    [message] = messages_in(reply)
    if not is_possible:
        reason = "already asked to stop" if verb == "cancel" and state == "asked_to_stop" else REASONS[state]
        assert message == f"1 row skipped: {reason} ({chain.id})."


@every_status
def test_buttons_are_shown_for_possible_actions(admin_request, store, state):
    chain = STATES[state](store).refresh()
    expected = {verb for verb in PERMISSIONS if state in POSSIBLE[verb]}
    if state == "pending":
        expected -= {"run_now"}
    assert offered(admin_request, chain, chain.current_job) == expected
    assert offered(admin_request, chain, chain.current_job, JobActionAdmin) == expected - {"delete"}


def test_the_page_of_an_impossible_action_has_no_form(superuser, store):
    chain = STATES["completed"](store)
    page = text_of(superuser.get(url("retry", chain)))
    assert "skipped: already completed" in page
    assert 'type="submit" class' not in page


def test_an_earlier_step_of_a_chain_is_skipped(superuser, admin_request, store):
    chain = STATES["pending"](store)
    first = chain.refresh().current_job
    go_on(chain)
    assert offered(admin_request, chain.refresh(), first) == set(), "it is not the current step of the chain"
    assert offered(admin_request, chain, Job.objects.get(pk=first.pk), JobActionAdmin) == set()
    before = everything()
    for verb in [verb for verb in PERMISSIONS if verb != "delete"]:
        reply = superuser.post(url(verb, first, "job"), answers(verb, chain))
        assert messages_in(reply)[-1] == f"1 row skipped: already completed ({first.id})."
    assert everything() == before


def test_impossible_rows_are_skipped_and_named(superuser, store):
    failed, done = [STATES["failed"](store) for _ in range(2)], STATES["completed"](store)
    reply = act_many(superuser, "retry", [*failed, done])
    assert messages_in(reply) == ["2 jobs retried.", f"1 row skipped: already completed ({done.id})."]
    assert [chain.refresh().status for chain in failed] == ["pending", "pending"]


def offered(request: Any, chain: Chain, job: Job, kind: Any = ChainActionAdmin) -> set[str]:
    from django.contrib import admin

    acting = kind(Chain if kind is ChainActionAdmin else Job, admin.site)
    return {button.url.rstrip("/").rsplit("/", 1)[1] for button in acting.actions_for(request, chain, job)}
