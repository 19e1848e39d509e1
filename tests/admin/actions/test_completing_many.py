"""Completing several jobs of one type with the same output or next job, each separately."""

from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError
from django.test import Client

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.chains.completion import CurrentJob
from django_jobchains.exceptions import JobAlreadyCompleted
from django_jobchains.processors import get_registry
from tests.admin.actions.browsing import act_many, answers, choose_action, messages_in, text_of, ticked, url
from tests.admin.actions.conftest import Parcel, Receipt, pack
from tests.support.chains import completed, everything, failed, ship, statuses

RECEIPT = {"payload_reference": "r-1"}
PARCEL = {"payload_number": "8", "payload_to": "Bob"}


@pytest.fixture
def rows(store):
    return [pack.enqueue(Parcel(number, "Ada Vogel")).refresh() for number in range(3)]


def complete(client: Client, rows: list[Any], model: str = "chain", **changes: Any) -> Any:
    return act_many(client, "complete", rows, model, **{**answers("complete", *rows), **RECEIPT, **changes})


def choose(client: Client, rows: list[Chain], type_name: str, **changes: Any) -> Any:
    """Choose the type that the chains continue with."""
    answer = {**ticked(rows), "job": [row.current_job_id for row in rows], "type": type_name, "ask": "Choose"}
    return client.post(url("complete_many"), {**answer, **changes})


@pytest.mark.parametrize("model", ["chain", "job"])
def test_several_jobs_get_the_same_output(superuser, rows, model):
    chosen = [row.current_job for row in rows] if model == "job" else rows
    page = text_of(choose_action(superuser, "complete", chosen, model))
    assert "3 jobs are completed with the output below" in page
    assert "&quot;reference&quot;" in page, "the schema of the type is missing"
    reply = complete(superuser, chosen, model)
    assert messages_in(reply) == ["3 jobs completed."]
    assert [(row.refresh().status, row.output) for row in rows] == [("completed", Receipt("r-1"))] * 3
    assert set(LogEntry.objects.values_list("object_id", "change_message")) == {
        (str(row.pk), "Completed.") for row in chosen
    }


def test_several_chains_continue_with_the_same_type_and_input(superuser, rows):
    page = text_of(choose(superuser, rows, "shop.send"))
    assert "Input of the next step" in page
    assert "3 jobs are completed, and their chains continue with shop.send" in page
    assert 'value="Complete and continue with shop.send"' in page
    assert '<input type="hidden" name="type" value="shop.send"' in page
    assert [statuses(row) for row in rows] == [["pending"]] * 3, "choosing a type must not change anything"
    reply = complete(superuser, rows, type="shop.send", **PARCEL)
    assert messages_in(reply) == ["3 jobs completed."]
    for row in rows:
        assert statuses(row.refresh()) == ["completed", "pending"]
        assert (row.current_job.type_name, row.current_job.input) == ("shop.send", {"number": 8, "to": "Bob"})


def test_the_choice_of_a_type_can_be_undone(superuser, rows):
    assert 'name="payload_reference"' in text_of(choose(superuser, rows, ""))


def test_a_type_filter_of_the_list_does_not_choose_a_type(superuser, rows):
    """The filter and the choice have the same parameter name."""
    reply = choose_action(superuser, "complete", rows, query="?type=shop.send")
    assert reply.context["form"].target_name == ""


def test_only_types_that_all_chains_may_continue_with_are_offered(superuser, rows):
    page = choose(superuser, rows, "shop.mail")
    assert {name for name, _ in page.context["type_form"].fields["type"].choices} == {"", "shop.ship", "shop.send"}
    before = everything()
    reply = complete(superuser, rows, type="shop.mail")
    assert reply.context["form"].errors["type"]
    assert everything() == before


def test_an_input_never_ends_chains_if_its_type_is_no_longer_allowed(superuser, store, monkeypatch):
    """The type of the jobs accepts any output, including one that was entered as an input."""
    rows = [ship.enqueue().refresh() for _ in range(2)]
    choose(superuser, rows, "shop.send")
    monkeypatch.delitem(get_registry().declared, "shop.send")
    before = everything()
    reply = complete(superuser, rows, type="shop.send", **PARCEL)
    assert "Choose another type or enter an output." in text_of(reply)
    assert everything() == before


def test_an_invalid_payload_shows_an_error_and_keeps_the_form(superuser, rows):
    before = everything()
    reply = complete(superuser, rows, payload_reference="")
    assert reply.context["form"].errors == {"payload_reference": ["This field is required."]}
    page = text_of(reply)
    for row in rows:
        assert f'name="_selected_action" value="{row.pk}"' in page
        assert f'name="job" value="{row.current_job_id}"' in page
    assert everything() == before


def test_jobs_of_several_types_are_refused(superuser, rows):
    mixed = [*rows, ship.enqueue().refresh()]
    before = everything()
    problem = "Nothing was changed: the jobs have different types (shop.pack, shop.ship), select jobs of one type."
    for reply in (
        choose_action(superuser, "complete", mixed),
        complete(superuser, mixed),
        choose(superuser, mixed, ""),
    ):
        assert (reply.status_code, messages_in(reply)[-1]) == (302, problem)
    assert everything() == before


def test_the_types_of_skipped_jobs_are_ignored(superuser, store, rows):
    skipped = [failed(store), completed(store)]
    page = text_of(choose_action(superuser, "complete", [*skipped, *rows]))
    assert "skipped: failed" in page
    assert "skipped: already completed" in page
    assert "&quot;reference&quot;" in page
    assert messages_in(complete(superuser, [*skipped, *rows])) == [
        "3 jobs completed.",
        f"1 row skipped: failed ({skipped[0].id}).",
        f"1 row skipped: already completed ({skipped[1].id}).",
    ]


@pytest.mark.parametrize("type_name", ["shop.pack", "shop.mail"])
def test_a_chain_that_has_continued_is_skipped(superuser, rows, type_name):
    """Another job of the same type is not completed either, because the page did not show it."""
    answer = {**answers("complete", *rows), **RECEIPT}
    continued = rows[1]
    go_on_with(continued, type_name)
    assert "skipped: the chain has continued with another job" in text_of(choose(superuser, rows, ""))
    reply = act_many(superuser, "complete", rows, **answer)
    reason = f"1 row skipped: the chain has continued with another job ({continued.id})."
    assert messages_in(reply) == ["2 jobs completed.", reason]
    assert statuses(continued) == ["completed", "pending"]


@pytest.mark.parametrize("type_name", ["shop.pack", "shop.mail"])
def test_a_chain_that_continues_during_the_action_is_skipped(superuser, rows, type_name):
    real, continued = chains.current_job, rows[0]

    def then(chain_id: Any, *args: Any, **options: Any) -> Any:
        if chain_id == continued.id:
            with patch("django_jobchains.chains.current_job", real):
                go_on_with(continued, type_name)
        return real(chain_id, *args, **options)

    with patch("django_jobchains.chains.current_job", then):
        reply = complete(superuser, rows)
    reason = f"1 row skipped: the chain has continued with another job ({continued.id})."
    assert messages_in(reply) == ["2 jobs completed.", reason]
    assert statuses(continued) == ["completed", "pending"]
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {str(row.id) for row in rows[1:]}


def test_a_refusal_affects_only_its_own_chain(superuser, rows):
    real, refused = CurrentJob.finish, rows[1]

    def finish(current: CurrentJob, output: Any) -> None:
        job = current.job
        real(current, output)
        if job.id == refused.current_job_id:
            raise JobAlreadyCompleted(job.id)

    with patch.object(CurrentJob, "finish", finish):
        reply = complete(superuser, rows)
    assert messages_in(reply) == ["2 jobs completed.", f"1 row skipped: already completed ({refused.id})."]
    assert [row.refresh().status for row in rows] == ["completed", "pending", "completed"]


def test_a_database_error_undoes_all(superuser, rows):
    real, before = CurrentJob.finish, everything()

    def finish(current: CurrentJob, output: Any) -> None:
        if current.job.id == rows[2].current_job_id:
            raise OperationalError("deadlock detected")
        real(current, output)

    with patch.object(CurrentJob, "finish", finish):
        reply = complete(superuser, rows)
    assert messages_in(reply) == ["Nothing was changed: a database error occurred, try again."]
    assert everything() == before
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("shown", [(), ("",), ("x", "\0"), ("01890000-0000-7000-8000-000000000000",)])
def test_a_form_without_the_shown_jobs_completes_nothing(superuser, rows, shown):
    before = everything()
    assert complete(superuser, rows, job=list(shown)).status_code in (200, 302)
    assert everything() == before


def test_the_input_of_one_job_is_shown_with_the_permission(staff, rows):
    may, may_not = staff("complete_job", "view_payload"), staff("complete_job")
    assert "Ada Vogel" in text_of(choose_action(may, "complete", rows[:1]))
    assert "Ada Vogel" not in text_of(choose_action(may_not, "complete", rows[:1]))
    assert "Ada Vogel" not in text_of(choose_action(may, "complete", rows))


def go_on_with(chain: Chain, type_name: str) -> None:
    """Continue the chain, even with a type that ``continues_with`` does not include."""
    with patch.object(pack, "continues_with", None), chains.current_job(chain.id) as current:
        current.continue_with(type_name, Parcel(1) if type_name == "shop.pack" else None)
