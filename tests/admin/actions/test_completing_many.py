"""Several jobs of a type get the same output, or the same next job; each by itself."""

from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError
from django.test import Client

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.completing import CurrentJob
from django_jobchains.exceptions import JobAlreadyCompleted
from django_jobchains.processors import get_registry
from django_jobchains.store import Store
from tests.admin.actions.browsing import act_many, answers, ask_many, said, text_of, ticked, url
from tests.admin.actions.conftest import Parcel, pack
from tests.interventions.chains_at import completed, everything, failed, ship, statuses

RECEIPT = '{"reference": "r-1"}'
PARCEL = '{"number": 8, "to": "Bob"}'


@pytest.fixture
def rows(store: Store) -> list[Chain]:
    return [pack.enqueue(Parcel(number, "Ada")).refresh() for number in range(3)]


def complete(client: Client, rows: list[Any], model: str = "chain", **changes: Any) -> Any:
    return act_many(client, "complete", rows, model, **{**answers("complete", *rows), "payload": RECEIPT, **changes})


def choose(client: Client, rows: list[Chain], type_name: str, **changes: Any) -> Any:
    """Chooses with what the chains go on."""
    answer = {**ticked(rows), "job": [row.current_job_id for row in rows], "type": type_name, "ask": "Choose"}
    return client.post(url("complete_many"), {**answer, **changes})


@pytest.mark.parametrize("model", ["chain", "job"])
def test_they_get_the_same_output(superuser: Client, rows: list[Chain], model: str) -> None:
    chosen = [row.current_job for row in rows] if model == "job" else rows
    page = text_of(ask_many(superuser, "complete", chosen, model))
    assert "3 jobs are completed, all with the output below" in page
    assert "&quot;reference&quot;" in page, "The shape of the type."
    reply = complete(superuser, chosen, model)
    assert said(reply) == ["3 jobs completed."]
    assert [(row.refresh().status, row.output) for row in rows] == [("completed", {"reference": "r-1"})] * 3
    assert set(LogEntry.objects.values_list("object_id", "change_message")) == {
        (str(row.pk), "Completed.") for row in chosen
    }


def test_they_go_on_with_the_same_type_and_input(superuser: Client, rows: list[Chain]) -> None:
    asked = choose(superuser, rows, "shop.send")
    page = text_of(asked)
    assert "Input of the next step" in page
    assert "3 jobs are completed, and their chains go on with shop.send" in page
    assert 'value="Complete and continue with shop.send"' in page
    assert '<input type="hidden" name="type" value="shop.send"' in page
    assert [statuses(row) for row in rows] == [["pending"]] * 3, "To choose changes nothing."
    reply = complete(superuser, rows, type="shop.send", payload=PARCEL)
    assert said(reply) == ["3 jobs completed."]
    for row in rows:
        assert statuses(row.refresh()) == ["completed", "pending"]
        assert (row.current_job.type_name, row.current_job.input) == ("shop.send", {"number": 8, "to": "Bob"})


def test_what_was_chosen_can_be_taken_back(superuser: Client, rows: list[Chain]) -> None:
    assert "Output, as JSON" in text_of(choose(superuser, rows, ""))


def test_a_filter_of_the_list_chooses_nothing(superuser: Client, rows: list[Chain]) -> None:
    """It is called as the choice is."""
    asked = ask_many(superuser, "complete", rows, query="?type=shop.send")
    assert asked.context["form"].target is None


def test_only_types_they_may_go_on_with_are_offered_and_taken(superuser: Client, rows: list[Chain]) -> None:
    asked = choose(superuser, rows, "shop.mail")
    assert {name for name, _ in asked.context["type_form"].fields["type"].choices} == {"", "shop.ship", "shop.send"}
    before = everything()
    reply = complete(superuser, rows, type="shop.mail")
    assert reply.context["form"].errors["type"]
    assert everything() == before


def test_an_input_never_ends_chains_when_its_type_is_gone(
    superuser: Client, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own type takes any output."""
    rows = [ship.enqueue().refresh() for _ in range(2)]
    choose(superuser, rows, "shop.send")
    monkeypatch.delitem(get_registry().declared, "shop.send")
    before = everything()
    reply = complete(superuser, rows, type="shop.send", payload=PARCEL)
    assert "Choose again how it ends." in text_of(reply)
    assert everything() == before


@pytest.mark.parametrize(("payload", "problem"), [("{", "This is no JSON"), ('{"reference": 5}', "Not a Receipt")])
def test_a_mistake_is_said_at_the_field_and_nothing_is_lost(
    superuser: Client, rows: list[Chain], payload: str, problem: str
) -> None:
    before = everything()
    reply = complete(superuser, rows, payload=payload)
    assert problem in reply.context["form"].errors["payload"][0]
    page = text_of(reply)
    for row in rows:
        assert f'name="_selected_action" value="{row.pk}"' in page
        assert f'name="job" value="{row.current_job_id}"' in page
    assert everything() == before


def test_jobs_of_several_types_are_refused_by_their_names(superuser: Client, rows: list[Chain]) -> None:
    mixed = [*rows, ship.enqueue().refresh()]
    before = everything()
    problem = "Nothing was changed: the jobs are of different types (shop.pack, shop.ship), choose those of one."
    for reply in (ask_many(superuser, "complete", mixed), complete(superuser, mixed), choose(superuser, mixed, "")):
        assert (reply.status_code, said(reply)[-1]) == (302, problem)
    assert everything() == before


def test_types_of_jobs_that_are_left_as_they_are_do_not_matter(
    superuser: Client, store: Store, rows: list[Chain]
) -> None:
    left = [failed(store), completed(store)]
    page = text_of(ask_many(superuser, "complete", [*left, *rows]))
    assert "left as it is: failed" in page
    assert "left as it is: completed already" in page
    assert "&quot;reference&quot;" in page
    assert said(complete(superuser, [*left, *rows])) == [
        "3 jobs completed.",
        f"1 left as it is: failed ({left[0].id}).",
        f"1 left as it is: completed already ({left[1].id}).",
    ]


@pytest.mark.parametrize("type_name", ["shop.pack", "shop.mail"])
def test_a_chain_that_has_gone_on_is_left_and_the_others_are_done(
    superuser: Client, rows: list[Chain], type_name: str
) -> None:
    """Also to a job of the same type: that one was not shown to anybody."""
    answer = {**answers("complete", *rows), "payload": RECEIPT}
    gone_on = rows[1]
    go_on_with(gone_on, type_name)
    asked = choose(superuser, rows, "")
    assert "left as it is: the chain has gone on to another job" in text_of(asked)
    reply = act_many(superuser, "complete", rows, **answer)
    reason = f"1 left as it is: the chain has gone on to another job ({gone_on.id})."
    assert said(reply) == ["2 jobs completed.", reason]
    assert statuses(gone_on) == ["completed", "pending"]


@pytest.mark.parametrize("type_name", ["shop.pack", "shop.mail"])
def test_a_chain_that_goes_on_at_the_last_moment_is_left_too(
    superuser: Client, rows: list[Chain], type_name: str
) -> None:
    real, gone_on = chains.complete, rows[0]

    def then(chain_id: Any, *args: Any, **options: Any) -> Any:
        if chain_id == gone_on.id:
            with patch("django_jobchains.chains.complete", real):
                go_on_with(gone_on, type_name)
        return real(chain_id, *args, **options)

    with patch("django_jobchains.chains.complete", then):
        reply = complete(superuser, rows)
    reason = f"1 left as it is: the chain has gone on to another job ({gone_on.id})."
    assert said(reply) == ["2 jobs completed.", reason]
    assert statuses(gone_on) == ["completed", "pending"]
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {str(row.id) for row in rows[1:]}


def test_a_refusal_undoes_its_own_chain_only(superuser: Client, rows: list[Chain]) -> None:
    real, refused = CurrentJob.finish, rows[1]

    def finish(current: CurrentJob, output: Any) -> None:
        job = current.job
        real(current, output)
        if job.id == refused.current_job_id:
            raise JobAlreadyCompleted(job.id)

    with patch.object(CurrentJob, "finish", finish):
        reply = complete(superuser, rows)
    assert said(reply) == ["2 jobs completed.", f"1 left as it is: completed already ({refused.id})."]
    assert [row.refresh().status for row in rows] == ["completed", "pending", "completed"]


def test_a_database_error_undoes_all(superuser: Client, rows: list[Chain]) -> None:
    real, before = CurrentJob.finish, everything()

    def finish(current: CurrentJob, output: Any) -> None:
        if current.job.id == rows[2].current_job_id:
            raise OperationalError("deadlock detected")
        real(current, output)

    with patch.object(CurrentJob, "finish", finish):
        reply = complete(superuser, rows)
    assert said(reply) == ["Nothing was changed: the database could not do it now, try again."]
    assert everything() == before
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("shown", [(), ("",), ("x", "\0"), ("01890000-0000-7000-8000-000000000000",)])
def test_without_the_jobs_that_were_shown_nothing_is_completed(
    superuser: Client, rows: list[Chain], shown: tuple[str, ...]
) -> None:
    before = everything()
    assert complete(superuser, rows, job=list(shown)).status_code in (200, 302)
    assert everything() == before


def test_of_one_the_input_is_shown_to_who_may_view_payloads(staff: Any, rows: list[Chain]) -> None:
    may, may_not = staff("complete_job", "view_payload"), staff("complete_job")
    assert "Ada" in text_of(ask_many(may, "complete", rows[:1]))
    assert "Ada" not in text_of(ask_many(may_not, "complete", rows[:1]))
    assert "Ada" not in text_of(ask_many(may, "complete", rows))


def go_on_with(chain: Chain, type_name: str) -> None:
    """Also with a type that its own declaration does not name."""
    with patch.object(pack, "continues_with", None), chains.complete(chain.id) as current:
        current.continue_with(type_name, Parcel(1) if type_name == "shop.pack" else None)
