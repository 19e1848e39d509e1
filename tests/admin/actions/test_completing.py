"""The form that completes a job: its output, or the next job and its input."""

from typing import Any

import pytest
from django.test import Client

from django_jobchains.chains import Chain
from django_jobchains.models import Job
from django_jobchains.processors import get_registry
from django_jobchains.store import Store
from tests.admin.actions.browsing import act, said, text_of, url
from tests.admin.actions.conftest import Parcel, pack
from tests.interventions.chains_at import everything, running, ship, statuses


@pytest.fixture
def chain(store: Store) -> Chain:
    return pack.enqueue(Parcel(7, "Ada")).refresh()


def test_the_output_is_rebuilt_by_the_type_and_the_chain_is_completed(superuser: Client, chain: Chain) -> None:
    reply = act(superuser, "complete", chain, payload='{"reference": "r-1"}')
    assert said(reply) == ["The job is completed."]
    assert reply["Location"] == url("change", chain)
    assert (chain.refresh().status, chain.output) == ("completed", {"reference": "r-1"})


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ("", "Write JSON, such as null"),
        ("{", "This is no JSON: line 1, column 2"),
        ("{'reference': 1}", "This is no JSON: line 1, column 2"),
        ('{"reference": 5}', "Not a Receipt"),
        ('{"number": 5}', "Not a Receipt"),
        ("null", "Not a Receipt"),
        ("9" * 5000, "This JSON cannot be read"),
        ('{"reference": "\\u0000"}', "a NUL character cannot be stored"),
        ('{"reference": "\\ud800"}', "lone surrogate"),
        ('{"reference": "' + "x" * 1_100_000 + '"}', "the limit is"),
    ],
    ids=range(10),
)
def test_what_is_no_output_of_the_type_is_said_at_the_field_and_kept(
    superuser: Client, chain: Chain, payload: str, problem: str
) -> None:
    before = everything()
    reply = act(superuser, "complete", chain, payload=payload)
    assert reply.status_code == 200
    form: Any = reply.context["form"]
    [error] = form.errors["payload"]
    assert problem in error
    assert form["payload"].value() == payload
    assert 'aria-invalid="true"' in text_of(reply)
    assert everything() == before


def test_what_is_nested_too_deep_is_refused(superuser: Client, store: Store) -> None:
    """Some versions of Python read it, others do not."""
    chain = ship.enqueue().refresh()
    reply = act(superuser, "complete", chain, payload="[" * 5000 + "]" * 5000)
    assert reply.context["form"].errors["payload"]
    assert chain.refresh().status == "pending"


@pytest.mark.parametrize("payload", ["NaN", "Infinity", "-Infinity", "[1e999]"])
def test_numbers_that_are_no_json_are_refused_of_a_type_without_annotations_too(
    superuser: Client, store: Store, payload: str
) -> None:
    chain = ship.enqueue().refresh()
    reply = act(superuser, "complete", chain, payload=payload)
    assert "is not JSON" in reply.context["form"].errors["payload"][0]
    assert chain.refresh().status == "pending"


def test_the_page_shows_the_shape_of_the_output(superuser: Client, chain: Chain) -> None:
    page = text_of(superuser.get(url("complete", chain)))
    assert "&quot;reference&quot;" in page
    assert "JSON Schema" in page


def test_the_input_is_shown_to_who_may_view_payloads_only(staff: Any, chain: Chain) -> None:
    assert "Ada" in text_of(staff("complete_job", "view_payload").get(url("complete", chain)))
    assert "Ada" not in text_of(staff("complete_job").get(url("complete", chain)))


def test_the_chain_continues_with_a_type_it_may_continue_with(superuser: Client, chain: Chain) -> None:
    page = url("complete", chain) + "?type=shop.send"
    asked = text_of(superuser.get(page))
    assert "Input of the next step" in asked
    assert "the chain goes on with shop.send." in asked
    assert 'value="Complete and continue with shop.send"' in asked
    answer = {"job": chain.current_job_id, "payload": '{"number": 8, "to": "Bob"}'}
    reply = superuser.post(page, answer)
    assert said(reply) == ["The job is completed."]
    assert statuses(chain.refresh()) == ["completed", "pending"]
    assert (chain.current_job.type_name, chain.current_job.input) == ("shop.send", {"number": 8, "to": "Bob"})


def test_the_input_of_the_next_job_is_checked_by_its_own_type(superuser: Client, chain: Chain) -> None:
    answer = {"job": chain.current_job_id, "payload": '{"reference": "r-1"}'}
    reply = superuser.post(url("complete", chain) + "?type=shop.send", answer)
    assert "Not a Parcel" in reply.context["form"].errors["payload"][0]
    assert statuses(chain) == ["pending"]


def test_other_types_are_neither_offered_nor_taken(superuser: Client, chain: Chain) -> None:
    page = superuser.get(url("complete", chain) + "?type=shop.mail")
    assert {name for name, _ in page.context["type_form"].fields["type"].choices} == {"shop.ship", "shop.send"}
    superuser.post(
        url("complete", chain) + "?type=shop.mail", {"job": chain.current_job_id, "payload": '{"reference": "r"}'}
    )
    assert not Job.objects.filter(type_name="shop.mail").exists()


def test_a_job_of_a_type_that_no_app_declares_takes_any_json_and_says_so(
    superuser: Client, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(get_registry().declared, "shop.pack")
    assert "No app of this project declares the type shop.pack" in text_of(superuser.get(url("complete", chain)))
    act(superuser, "complete", chain, payload="[1, 2]")
    assert (chain.refresh().status, chain.output) == ("completed", [1, 2])


def test_a_running_job_can_be_completed_and_its_worker_writes_nothing_more(superuser: Client, store: Store) -> None:
    chain = running(store)
    lease = chain.current_job
    act(superuser, "complete", chain, payload="5")
    assert chain.refresh().output == 5
    [claimed] = Job.objects.filter(pk=lease.pk)
    assert claimed.leased_by is None


def test_a_step_is_completed_on_its_own_page_too(superuser: Client, chain: Chain) -> None:
    answer = {"job": chain.current_job_id, "payload": '{"reference": "r-1"}'}
    reply = superuser.post(url("complete", chain.current_job, "job"), answer)
    assert reply["Location"] == url("change", chain.current_job, "job")
    assert chain.refresh().status == "completed"
