"""Completing one or several jobs of one type with an output, or with the type and input of the next job."""

from unittest.mock import patch

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError

from django_jobchains import chains
from django_jobchains.chains.completion import CurrentJob
from django_jobchains.exceptions import JobAlreadyCompleted
from django_jobchains.models import Job
from django_jobchains.processors import get_registry
from tests.admin.actions.conftest import Parcel, Receipt, pack, weigh
from tests.admin.browsing import act, act_many, answers, choose_action, messages_in, text_of, ticked, url
from tests.support.chains import completed, everything, failed, running, ship, statuses

RECEIPT = {"payload_reference": "r-1"}
PARCEL = {"payload_number": "8", "payload_to": "Bob"}


@pytest.fixture
def rows(store):
    return [pack.enqueue(Parcel(number, "Ada Vogel")).refresh() for number in range(3)]


@pytest.fixture
def chain(rows):
    return rows[0]


def complete(client, rows, model="chain", **changes):
    return act_many(client, "complete", rows, model, **{**answers("complete", *rows), **RECEIPT, **changes})


def choose(client, rows, type_name):
    """Choose the type that the chains continue with."""
    answer = {"job": [row.current_job_id for row in rows], "type": type_name, "ask": "Choose"}
    return client.post(url("complete_many"), {**ticked(rows), **answer})


def go_on_with(chain, type_name):
    """Continue the chain, even with a type that ``continues_with`` does not include."""
    with patch.object(pack, "continues_with", None), chains.current_job(chain.id) as current:
        current.continue_with(type_name, Parcel(1) if type_name == "shop.pack" else None)


@pytest.mark.parametrize("model", ["chain", "job"])
def test_one_job_is_completed_with_an_output_of_its_type(superuser, chain, model):
    row = chain.current_job if model == "job" else chain
    page = text_of(superuser.get(url("complete", row, model)))
    assert "&quot;reference&quot;" in page, "the schema of the type is missing"
    reply = act(superuser, "complete", row, model, **RECEIPT)
    assert (messages_in(reply), reply["Location"]) == (["1 job completed."], url("change", row, model))
    assert (chain.refresh().status, chain.output) == ("completed", Receipt("r-1"))


@pytest.mark.parametrize("model", ["chain", "job"])
def test_several_jobs_get_the_same_output(superuser, rows, model):
    chosen = [row.current_job for row in rows] if model == "job" else rows
    page = text_of(choose_action(superuser, "complete", chosen, model))
    assert "3 jobs are completed with the output below" in page
    assert "&quot;reference&quot;" in page
    assert messages_in(complete(superuser, chosen, model)) == ["3 jobs completed."]
    assert [(row.refresh().status, row.output) for row in rows] == [("completed", Receipt("r-1"))] * 3


def test_one_chain_continues_with_an_allowed_type(superuser, chain):
    page = superuser.get(url("complete", chain) + "?type=shop.send")
    assert "the chain continues with shop.send." in text_of(page)
    assert 'value="Complete and continue with shop.send"' in text_of(page)
    assert '<input type="hidden" name="type" value="shop.send"' in text_of(page)
    reply = act(superuser, "complete", chain, type="shop.send", payload_number="x")
    assert reply.context["form"].errors == {"payload_number": ["Enter a whole number."]}
    assert messages_in(act(superuser, "complete", chain, type="shop.send", **PARCEL)) == ["1 job completed."]
    assert statuses(chain.refresh()) == ["completed", "pending"]
    assert (chain.current_job.type_name, chain.current_job.input) == ("shop.send", {"number": 8, "to": "Bob"})


def test_several_chains_continue_with_the_same_type_and_input(superuser, rows):
    page = text_of(choose(superuser, rows, "shop.send"))
    assert "Input of the next step" in page
    assert "3 jobs are completed, and their chains continue with shop.send" in page
    assert '<input type="hidden" name="type" value="shop.send"' in page
    assert [statuses(row) for row in rows] == [["pending"]] * 3, "choosing a type must not change anything"
    assert messages_in(complete(superuser, rows, type="shop.send", **PARCEL)) == ["3 jobs completed."]
    for row in rows:
        assert statuses(row.refresh()) == ["completed", "pending"]
        assert (row.current_job.type_name, row.current_job.input) == ("shop.send", {"number": 8, "to": "Bob"})


def test_the_type_is_chosen_by_the_form_and_not_by_the_filter_of_the_list(superuser, rows):
    """The filter and the choice have the same parameter name."""
    reply = choose_action(superuser, "complete", rows, query="?type=shop.send")
    assert reply.context["form"].target_name == ""
    assert 'name="payload_reference"' in text_of(choose(superuser, rows, "")), "the choice cannot be undone"


def test_other_types_are_neither_offered_nor_accepted(superuser, rows):
    before = everything()
    for page, reply in (
        (
            superuser.get(url("complete", rows[0]) + "?type=shop.mail"),
            act(superuser, "complete", rows[0], type="shop.mail"),
        ),
        (choose(superuser, rows, "shop.mail"), complete(superuser, rows, type="shop.mail")),
    ):
        choices = {name for name, _ in page.context["type_form"].fields["type"].choices}
        assert choices == {"", "shop.ship", "shop.send"}
        assert reply.context["form"].errors["type"] == [
            "The chain can no longer continue with this type. Choose another type or enter an output."
        ]
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


@pytest.mark.parametrize(
    ("job_type", "payload", "problem"),
    [
        (weigh, "", "Enter JSON, such as null"),
        (weigh, "{", "Invalid JSON: line 1, column 2"),
        (weigh, '{"reference": 5}', "Not a dict"),
        (weigh, "null", "Not a dict"),
        (weigh, "9" * 5000, "This JSON cannot be read"),
        (weigh, '{"reference": "\\u0000"}', "a NUL character cannot be stored"),
        (weigh, '{"reference": "\\ud800"}', "lone surrogate"),
        (weigh, '{"reference": "' + "x" * 1_100_000 + '"}', "the limit is"),
        (ship, "[" * 5000 + "]" * 5000, ""),  # whether Python can parse it depends on its version
        (ship, "NaN", "is not JSON"),
        (ship, "-Infinity", "is not JSON"),
        (ship, "[1e999]", "is not JSON"),
    ],
    ids=range(12),
)
def test_an_invalid_output_shows_an_error_and_is_kept(superuser, store, job_type, payload, problem):
    chain, before = job_type.enqueue().refresh(), everything()
    reply = act(superuser, "complete", chain, payload=payload)
    form = reply.context["form"]
    assert problem in form.errors["payload"][0]
    assert form["payload"].value() == payload
    assert 'aria-invalid="true"' in text_of(reply)
    assert everything() == before


def test_an_invalid_output_of_several_jobs_keeps_the_selection(superuser, rows):
    before = everything()
    reply = complete(superuser, rows, payload_reference="")
    assert reply.context["form"].errors == {"payload_reference": ["This field is required."]}
    for row in rows:
        assert f'name="_selected_action" value="{row.pk}"' in text_of(reply)
        assert f'name="job" value="{row.current_job_id}"' in text_of(reply)
    assert everything() == before


def test_a_job_of_an_undeclared_type_accepts_any_json(superuser, chain, monkeypatch):
    monkeypatch.delitem(get_registry().declared, "shop.pack")
    assert "No installed app declares the type shop.pack" in text_of(superuser.get(url("complete", chain)))
    act(superuser, "complete", chain, payload="[1, 2]")
    assert (chain.refresh().status, chain.stored_output) == ("completed", [1, 2])


def test_completing_a_running_job_discards_the_result_of_its_worker(superuser, store):
    chain = running(store)
    act(superuser, "complete", chain, payload="5")
    assert chain.refresh().output == 5
    assert Job.objects.get(pk=chain.current_job_id).leased_by is None


def test_jobs_of_several_types_are_refused(superuser, rows):
    mixed = [*rows, ship.enqueue().refresh()]
    before = everything()
    problem = "Nothing was changed: the jobs have different types (shop.pack, shop.ship), select jobs of one type."
    choice = choose_action(superuser, "complete", mixed)
    for reply in (choice, complete(superuser, mixed), choose(superuser, mixed, "")):
        assert (reply.status_code, messages_in(reply)[-1]) == (302, problem)
    assert everything() == before


def test_the_types_of_skipped_jobs_are_ignored(superuser, store, rows):
    skipped = [failed(store), completed(store)]
    page = text_of(choose_action(superuser, "complete", [*skipped, *rows]))
    assert all(text in page for text in ("skipped: failed", "skipped: already completed", "&quot;reference&quot;"))
    assert messages_in(complete(superuser, [*skipped, *rows])) == [
        "3 jobs completed.",
        f"1 row skipped: failed ({skipped[0].id}).",
        f"1 row skipped: already completed ({skipped[1].id}).",
    ]


@pytest.mark.parametrize("is_late", [False, True], ids=["before the form is sent", "while it is handled"])
@pytest.mark.parametrize("type_name", ["shop.pack", "shop.mail"])
def test_a_chain_that_has_continued_is_skipped(superuser, rows, type_name, is_late):
    """Another job of the same type is not completed either, because the page did not show it."""
    real, continued = chains.current_job, rows[1]
    answer = {**answers("complete", *rows), **RECEIPT}

    def late(chain_id, *args, **options):
        if chain_id == continued.id:
            with patch("django_jobchains.chains.current_job", real):
                go_on_with(continued, type_name)
        return real(chain_id, *args, **options)

    if not is_late:
        go_on_with(continued, type_name)
        assert "skipped: the chain has continued with another job" in text_of(choose(superuser, rows, ""))
    with patch("django_jobchains.chains.current_job", late if is_late else real):
        reply = act_many(superuser, "complete", rows, **answer)
    reason = f"1 row skipped: the chain has continued with another job ({continued.id})."
    assert messages_in(reply) == ["2 jobs completed.", reason]
    assert statuses(continued) == ["completed", "pending"]
    assert set(LogEntry.objects.values_list("object_id", flat=True)) == {str(rows[0].id), str(rows[2].id)}


def test_a_refusal_affects_only_its_own_chain_and_a_database_error_all(superuser, rows):
    real, refused, before = CurrentJob.finish, rows[1], everything()

    def finish(current, output):
        job = current.job
        real(current, output)
        if job.id == refused.current_job_id:
            raise error

    with patch.object(CurrentJob, "finish", finish):
        error = OperationalError("deadlock detected")
        reply = complete(superuser, rows)
        assert messages_in(reply) == ["Nothing was changed: a database error occurred, try again."]
        assert (everything(), LogEntry.objects.exists()) == (before, False)
        error = JobAlreadyCompleted(refused.current_job_id)
        reply = complete(superuser, rows)
    assert messages_in(reply)[-2:] == ["2 jobs completed.", f"1 row skipped: already completed ({refused.id})."]
    assert [row.refresh().status for row in rows] == ["completed", "pending", "completed"]


@pytest.mark.parametrize("shown", [(), ("",), ("x", "\0"), ("01890000-0000-7000-8000-000000000000",)])
def test_a_form_without_the_shown_jobs_completes_nothing(superuser, rows, shown):
    before = everything()
    assert complete(superuser, rows, job=list(shown)).status_code in (200, 302)
    assert everything() == before


def test_the_input_of_one_job_is_shown_with_the_permission(staff, rows):
    may, may_not = staff("complete_job", "view_payload"), staff("complete_job")
    for client, number, is_shown in ((may, 1, True), (may_not, 1, False), (may, 3, False)):
        page = text_of(choose_action(client, "complete", rows[:number]))
        assert ("&quot;Ada Vogel&quot;" in page) is is_shown
        assert ("Ada Vogel" in page) is (client is may), "also in the labels"
