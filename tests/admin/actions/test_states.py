"""The states in which each action is possible, and the reasons why it is not."""

import pytest
from django.contrib import admin

from django_jobchains.admin.actions.row_actions import ChainActionAdmin, JobActionAdmin
from django_jobchains.models import Chain, Job
from tests.admin.browsing import PERMISSIONS, act, messages_in, text_of, url, verb_url
from tests.admin.records.site import MOVES, STATES, put, state_of
from tests.records.models import Letter
from tests.support import chains
from tests.support.chains import everything, go_on

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("record_site")]

OPEN = {"blocked", "pending", "scheduled", "backing_off", "running", "asked_to_stop"}
PENDING = {"pending", "scheduled", "backing_off"}
POSSIBLE = {
    "complete": OPEN,
    "retry": {"failed", "cancelled"},
    "run_now": PENDING,
    "reschedule": PENDING,
    "cancel": OPEN - {"asked_to_stop"},
    "delete": set(chains.STATES),
}
REASONS = {
    "blocked": "waits for other chains",
    **dict.fromkeys(PENDING, "pending"),
    **dict.fromkeys(("running", "asked_to_stop"), "running"),
    "completed": "already completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
every_state = pytest.mark.parametrize("state", chains.STATES)


@every_state
@pytest.mark.parametrize("verb", PERMISSIONS)
def test_an_action_depends_on_the_status_and_reports_the_reason(superuser, store, verb, state):
    chain = chains.STATES[state](store).refresh()
    before, is_possible = everything(), state in POSSIBLE[verb]
    reply = act(superuser, verb, chain)
    assert reply.status_code == 302
    assert (everything() != before) is is_possible
    [message] = messages_in(reply)
    if not is_possible:
        reason = "already asked to stop" if (verb, state) == ("cancel", "asked_to_stop") else REASONS[state]
        assert message == f"1 row skipped: {reason} ({chain.id})."


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("verb", MOVES)
def test_an_action_on_a_record_depends_on_its_state(superuser, verb, state):
    record = put(state=state)
    [message] = messages_in(act(superuser, verb, record))
    is_possible = state in MOVES[verb]
    assert state_of(record) == MOVES[verb].get(state, state)
    assert record.cancel is (verb == "cancel" and is_possible)
    assert is_possible or message == f"1 row skipped: {state} ({record.pk})."


def test_a_record_that_was_asked_to_stop_is_skipped(superuser):
    record = put(state="processing", cancel=True)
    assert messages_in(act(superuser, "cancel", record)) == [f"1 row skipped: already asked to stop ({record.pk})."]


@pytest.mark.parametrize("verb", MOVES)
def test_columns_of_records_with_other_names_and_text_keys(superuser, verb):
    record = put(Letter, "errored", code="a/b _%")
    assert superuser.get(verb_url(verb, record)).status_code == 200
    act(superuser, verb, record)
    assert state_of(record) == MOVES[verb]["errored"]


def offered(client, chain, job, kind=ChainActionAdmin):
    """Return the verbs of the buttons on the page of a chain or of a job."""
    acting = kind(Chain if kind is ChainActionAdmin else Job, admin.site)
    buttons = acting.actions_for(client.get("/admin/").wsgi_request, chain, job)
    return {button.url.rstrip("/").rsplit("/", 1)[1] for button in buttons}


@every_state
def test_buttons_are_shown_for_possible_actions(superuser, store, state):
    chain = chains.STATES[state](store).refresh()
    expected = {verb for verb in PERMISSIONS if state in POSSIBLE[verb]}
    if state == "pending":
        expected -= {"run_now"}
    assert offered(superuser, chain, chain.current_job) == expected
    assert offered(superuser, chain, chain.current_job, JobActionAdmin) == expected - {"delete"}


def test_the_page_of_an_impossible_action_has_no_form(superuser, store):
    page = text_of(superuser.get(url("retry", chains.completed(store))))
    assert "skipped: already completed" in page
    assert 'type="submit" class' not in page


def test_an_earlier_step_of_a_chain_is_skipped(superuser, store):
    chain = chains.pending(store)
    first = chain.refresh().current_job
    go_on(chain)
    assert offered(superuser, chain.refresh(), first) == set(), "it is not the current step of the chain"
    assert offered(superuser, chain, Job.objects.get(pk=first.pk), JobActionAdmin) == set()
    before = everything()
    for verb in [verb for verb in PERMISSIONS if verb != "delete"]:
        reply = act(superuser, verb, first, "job")
        assert messages_in(reply)[-1] == f"1 row skipped: already completed ({first.id})."
    assert everything() == before
