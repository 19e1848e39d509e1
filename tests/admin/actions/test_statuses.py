"""From which statuses each verb is done, and what is said where it is not."""

from typing import Any

import pytest
from django.test import Client

from django_jobchains.admin.acting import ActingOnChains, ActingOnJobs
from django_jobchains.chains import Chain
from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.admin.actions.browsing import PERMISSIONS, act, act_many, answers, said, text_of, url
from tests.interventions.chains_at import STATES, everything, go_on

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
    "completed": "completed already",
    "failed": "failed",
    "cancelled": "cancelled",
}

every_status = pytest.mark.parametrize("state", STATES)


@every_status
@pytest.mark.parametrize("verb", PERMISSIONS)
def test_it_is_done_where_it_is_possible_and_the_reason_is_told_where_not(
    superuser: Client, store: Store, verb: str, state: str
) -> None:
    chain = STATES[state](store).refresh()
    before = everything()
    is_possible = state in POSSIBLE[verb]
    reply = act(superuser, verb, chain)
    assert reply.status_code == 302
    assert (everything() != before) is is_possible
    [message] = said(reply)
    if not is_possible:
        reason = "asked to stop already" if verb == "cancel" and state == "asked_to_stop" else REASONS[state]
        assert message == f"1 left as it is: {reason} ({chain.id})."


@every_status
def test_there_are_buttons_for_what_is_possible_and_run_now_for_what_is_not_due(
    admin_request: Any, store: Store, state: str
) -> None:
    chain = STATES[state](store).refresh()
    expected = {verb for verb in PERMISSIONS if state in POSSIBLE[verb]}
    if state == "pending":
        expected -= {"run_now"}
    assert offered(admin_request, chain, chain.current_job) == expected
    assert offered(admin_request, chain, chain.current_job, ActingOnJobs) == expected - {"delete"}


def test_a_page_for_what_is_not_possible_has_nothing_to_confirm(superuser: Client, store: Store) -> None:
    chain = STATES["completed"](store)
    page = text_of(superuser.get(url("retry", chain)))
    assert "left as it is: completed already" in page
    assert 'type="submit" class' not in page


def test_an_earlier_step_of_a_chain_is_left_alone(superuser: Client, admin_request: Any, store: Store) -> None:
    chain = STATES["pending"](store)
    first = chain.refresh().current_job
    go_on(chain)
    assert offered(admin_request, chain.refresh(), first) == set(), "On the chain's page it is no current step."
    assert offered(admin_request, chain, Job.objects.get(pk=first.pk), ActingOnJobs) == set()
    before = everything()
    for verb in [verb for verb in PERMISSIONS if verb != "delete"]:
        reply = superuser.post(url(verb, first, "job"), answers(verb, chain))
        assert said(reply)[-1] == f"1 left as it is: completed already ({first.id})."
    assert everything() == before


def test_of_several_the_possible_are_done_and_the_others_are_named(superuser: Client, store: Store) -> None:
    failed, done = [STATES["failed"](store) for _ in range(2)], STATES["completed"](store)
    reply = act_many(superuser, "retry", [*failed, done])
    assert said(reply) == ["2 jobs retried.", f"1 left as it is: completed already ({done.id})."]
    assert [chain.refresh().status for chain in failed] == ["pending", "pending"]


def offered(request: Any, chain: Chain, job: Job, kind: Any = ActingOnChains) -> set[str]:
    from django.contrib import admin

    acting = kind(Chain if kind is ActingOnChains else Job, admin.site)
    return {button.url.rstrip("/").rsplit("/", 1)[1] for button in acting.actions_for(request, chain, job)}
