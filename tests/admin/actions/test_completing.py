"""The form that completes a job with an output, or with the type and input of the next job."""

from typing import Any

import pytest

from django_jobchains.models import Job
from django_jobchains.processors import get_registry
from tests.admin.actions.browsing import act, messages_in, text_of, url
from tests.admin.actions.conftest import Parcel, Receipt, pack, weigh
from tests.support.chains import everything, running, ship, statuses


@pytest.fixture
def chain(store):
    return pack.enqueue(Parcel(7, "Ada Vogel")).refresh()


def test_the_output_is_converted_by_the_type_and_completes_the_chain(superuser, chain):
    reply = act(superuser, "complete", chain, payload_reference="r-1")
    assert messages_in(reply) == ["1 job completed."]
    assert reply["Location"] == url("change", chain)
    assert (chain.refresh().status, chain.output) == ("completed", Receipt("r-1"))


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ("", "Enter JSON, such as null"),
        ("{", "Invalid JSON: line 1, column 2"),
        ("{'reference': 1}", "Invalid JSON: line 1, column 2"),
        ('{"reference": 5}', "Not a dict"),
        ("5", "Not a dict"),
        ("null", "Not a dict"),
        ("9" * 5000, "This JSON cannot be read"),
        ('{"reference": "\\u0000"}', "a NUL character cannot be stored"),
        ('{"reference": "\\ud800"}', "lone surrogate"),
        ('{"reference": "' + "x" * 1_100_000 + '"}', "the limit is"),
    ],
    ids=range(10),
)
def test_an_invalid_output_shows_an_error_and_is_kept(superuser, store, payload, problem):
    chain, before = weigh.enqueue().refresh(), everything()
    reply = act(superuser, "complete", chain, payload=payload)
    assert reply.status_code == 200
    form: Any = reply.context["form"]
    [error] = form.errors["payload"]
    assert problem in error
    assert form["payload"].value() == payload
    assert 'aria-invalid="true"' in text_of(reply)
    assert everything() == before


def test_deeply_nested_json_is_rejected(superuser, store):
    """Whether Python can parse it depends on its version."""
    chain = ship.enqueue().refresh()
    reply = act(superuser, "complete", chain, payload="[" * 5000 + "]" * 5000)
    assert reply.context["form"].errors["payload"]
    assert chain.refresh().status == "pending"


@pytest.mark.parametrize("payload", ["NaN", "Infinity", "-Infinity", "[1e999]"])
def test_nan_and_infinity_are_rejected_for_untyped_jobs_too(superuser, store, payload):
    chain = ship.enqueue().refresh()
    reply = act(superuser, "complete", chain, payload=payload)
    assert "is not JSON" in reply.context["form"].errors["payload"][0]
    assert chain.refresh().status == "pending"


def test_the_page_shows_the_schema_of_the_output(superuser, chain):
    page = text_of(superuser.get(url("complete", chain)))
    assert "&quot;reference&quot;" in page
    assert "JSON Schema" in page


def test_the_input_requires_the_permission_to_view_payloads(staff, chain):
    assert "Ada Vogel" in text_of(staff("complete_job", "view_payload").get(url("complete", chain)))
    assert "Ada Vogel" not in text_of(staff("complete_job").get(url("complete", chain)))


def test_the_chain_continues_with_an_allowed_type(superuser, chain):
    page = url("complete", chain) + "?type=shop.send"
    page_text = text_of(superuser.get(page))
    assert "Input of the next step" in page_text
    assert "the chain continues with shop.send." in page_text
    assert 'value="Complete and continue with shop.send"' in page_text
    assert '<input type="hidden" name="type" value="shop.send"' in page_text
    reply = act(superuser, "complete", chain, type="shop.send", payload_number="8", payload_to="Bob")
    assert messages_in(reply) == ["1 job completed."]
    assert statuses(chain.refresh()) == ["completed", "pending"]
    assert (chain.current_job.type_name, chain.current_job.input) == ("shop.send", {"number": 8, "to": "Bob"})


def test_the_input_of_the_next_job_is_validated_by_its_type(superuser, chain):
    reply = act(superuser, "complete", chain, type="shop.send", payload_number="x")
    assert reply.context["form"].errors == {"payload_number": ["Enter a whole number."]}
    assert statuses(chain) == ["pending"]


def test_other_types_are_neither_offered_nor_accepted(superuser, chain):
    page = superuser.get(url("complete", chain) + "?type=shop.mail")
    assert {name for name, _ in page.context["type_form"].fields["type"].choices} == {"", "shop.ship", "shop.send"}
    before = everything()
    reply = act(superuser, "complete", chain, type="shop.mail", payload='{"reference": "r"}')
    assert reply.context["form"].errors["type"] == [
        "The chain can no longer continue with this type. Choose another type or enter an output."
    ]
    assert everything() == before, "an input must not become the output"


def test_a_job_of_an_undeclared_type_accepts_any_json(superuser, chain, monkeypatch):
    monkeypatch.delitem(get_registry().declared, "shop.pack")
    assert "No installed app declares the type shop.pack" in text_of(superuser.get(url("complete", chain)))
    act(superuser, "complete", chain, payload="[1, 2]")
    assert (chain.refresh().status, chain.stored_output) == ("completed", [1, 2])


def test_completing_a_running_job_discards_the_result_of_its_worker(superuser, store):
    chain = running(store)
    lease = chain.current_job
    act(superuser, "complete", chain, payload="5")
    assert chain.refresh().output == 5
    [claimed] = Job.objects.filter(pk=lease.pk)
    assert claimed.leased_by is None


def test_a_step_can_be_completed_on_the_page_of_its_job(superuser, chain):
    answer = {"job": chain.current_job_id, "payload_reference": "r-1"}
    reply = superuser.post(url("complete", chain.current_job, "job"), answer)
    assert reply["Location"] == url("change", chain.current_job, "job")
    assert chain.refresh().status == "completed"
