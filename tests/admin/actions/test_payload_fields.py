"""The fields of the form for an output, which are derived from its type."""

import html
import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NotRequired
from uuid import UUID

import pytest
from pydantic import BaseModel, Field, field_validator
from typing_extensions import TypedDict

from django_jobchains.processors import JobType, get_registry
from django_jobchains.text.validation_errors import MAX_PROBLEMS
from tests.admin.browsing import act, messages_in, url


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Address:
    street: str
    lines: list[str] = field(default_factory=list)


class Model(BaseModel):
    required: int = Field(ge=2, le=9, description="From two to nine.")
    titled: str = Field(title="The title", max_length=5)
    with_default: str = "usual"
    enough: float = 1.5

    @field_validator("with_default")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value == "unknown":
            raise ValueError("not a known value")
        return value


class Keys(TypedDict):
    here: bool
    there: NotRequired[bool]
    maybe: NotRequired[int]
    nothing: int | None


@dataclass(frozen=True)
class Everything:
    decision: Literal["approve", "reject"]
    colour: Colour
    price: Decimal
    address: Address
    on: date
    at: datetime
    of_day: time
    by: UUID
    either: int | list[int]
    anything: Any
    note: str | None = None
    number: int | None = 3
    kind: Colour = Colour.BLUE
    is_urgent: bool = True
    tags: list[str] = field(default_factory=list)


ANSWERS = {
    "decision": '"reject"', "colour": '"red"', "price": "12.50", "address": '{"street": "Main"}', "on": "2026-01-02",
    "at": "2026-01-02T03:04:05", "of_day": "03:04:05", "by": str(UUID(int=7)), "either": "[1, 2]", "anything": "",
    "note": "", "number": "", "kind": '"blue"', "tags": "",
}  # fmt: skip


@pytest.fixture
def waiting(db, monkeypatch):
    """Return a function that returns a chain whose output has a type."""

    def waiting(output):
        job_type = JobType("shop.form", output=output)
        monkeypatch.setitem(get_registry().declared, "shop.form", job_type)
        return job_type.enqueue().refresh()

    return waiting


def form_of(client, chain):
    fields = client.get(url("complete", chain)).context["form"].fields
    return {name.removeprefix("payload_"): found for name, found in fields.items() if name.startswith("payload")}


def answer(client, chain, **values):
    return act(client, "complete", chain, **{f"payload_{name}": value for name, value in values.items()})


def test_every_kind_of_member_has_its_field_with_a_default_or_a_skeleton(superuser, waiting):
    fields = form_of(superuser, waiting(Everything))
    json_fields = {name for name, found in fields.items() if "jobchains-json" in found.widget.attrs.get("class", "")}
    assert json_fields == {"address", "either", "anything", "tags"}
    types = {"on": "date", "at": "datetime-local", "of_day": "time", "is_urgent": "checkbox", "number": "number"}
    assert {name: fields[name].widget.input_type for name in types} == types
    assert [value for value, _ in fields["decision"].choices] == ["", '"approve"', '"reject"']
    assert [value for value, _ in fields["kind"].choices] == ['"red"', '"blue"']
    required = {name for name, found in fields.items() if found.required}
    assert required == {"decision", "colour", "price", "address", "on", "at", "of_day", "by", "either", "kind"}
    initial = {name: found.initial for name, found in fields.items() if found.initial not in (None, "")}
    assert initial == {
        "address": '{\n  "street": ""\n}', "either": "0", "anything": "null",
        "number": 3, "kind": '"blue"', "is_urgent": True,
    }  # fmt: skip


def test_the_values_have_the_types_of_the_output(superuser, waiting):
    chain = waiting(Everything)
    assert messages_in(answer(superuser, chain, **ANSWERS)) == ["1 job completed."]
    assert chain.refresh().output.at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert chain.stored_output == {
        "decision": "reject", "colour": "red", "price": "12.50", "address": {"street": "Main", "lines": []},
        "on": "2026-01-02", "at": "2026-01-02T03:04:05Z", "of_day": "03:04:05", "by": str(UUID(int=7)),
        "either": [1, 2], "anything": None, "note": None, "number": None, "kind": "blue", "is_urgent": False,
        "tags": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("output", "values", "stored"),
    [
        (Keys, {"here": "on", "there": "unknown", "maybe": "", "nothing": ""}, {"here": True, "nothing": None}),
        (
            Model,
            {"required": "2", "titled": "t", "with_default": "", "enough": "2"},
            {"required": 2, "titled": "t", "with_default": "", "enough": 2.0},
        ),
    ],
)
def test_optional_keys_can_be_omitted_and_texts_with_a_default_emptied(superuser, waiting, output, values, stored):
    chain = waiting(output)
    answer(superuser, chain, **values)
    assert chain.refresh().stored_output == stored


def test_titles_and_descriptions_are_shown(superuser, waiting):
    fields = form_of(superuser, waiting(Model))
    assert [str(found.label) for found in fields.values()] == ["Required", "The title", "With default", "Enough"]
    assert fields["required"].help_text == "From two to nine."


@pytest.mark.parametrize(
    ("changes", "errors"),
    [
        ({"required": "1"}, {"payload_required": ["Ensure this value is greater than or equal to 2."]}),
        ({"titled": "longer"}, {"payload_titled": ["Ensure this value has at most 5 characters (it has 6)."]}),
        ({"enough": ""}, {"payload_enough": ["This field is required."]}),
        (
            {"with_default": "unknown"},
            {"payload_with_default": ["Invalid value: Value error, not a known value"]},
        ),
    ],
)
def test_errors_are_shown_at_their_fields(superuser, waiting, changes, errors):
    chain = waiting(Model)
    values = {"required": "2", "titled": "t", "with_default": "w", "enough": "1", **changes}
    assert answer(superuser, chain, **values).context["form"].errors == errors
    assert chain.refresh().status == "pending"


@pytest.mark.parametrize(
    ("address", "problem"),
    [("{", "Invalid JSON: line 1, column 2"), ('{"street": 5}', "street: Input should be a valid string")],
)
def test_an_error_inside_json_is_shown_at_its_field(superuser, waiting, address, problem):
    chain = waiting(Everything)
    errors = answer(superuser, chain, **{**ANSWERS, "address": address}).context["form"].errors
    assert set(errors) == {"payload_address"}
    assert problem in errors["payload_address"][0]


@pytest.mark.parametrize(("output", "name"), [(list[int], "payload"), (Address, "payload_lines")])
def test_a_page_shows_the_first_problems_and_counts_the_others(superuser, waiting, output, name):
    chain = waiting(output)
    text = json.dumps([["wrong"]] * 30_000)
    reply = act(superuser, "complete", chain, **{"payload_street": "Main", name: text})
    errors = [error for found in reply.context["form"].errors.values() for error in found]
    assert len(errors) in (1, MAX_PROBLEMS + 1)  # a form with fields shows one for each problem
    assert "29,980 more problems" in errors[-1]
    assert sum(map(len, errors)) < 20_000
    assert len(reply.content) < len(html.escape(text)) + 50_000


@pytest.mark.parametrize("output", [list[int], Address])
def test_the_size_is_checked_before_the_type(superuser, waiting, settings, output):
    chain = waiting(output)
    settings.JOBCHAINS = {"MAX_PAYLOAD_BYTES": 200}
    many = json.dumps(["wrong"] * 30)
    reply = act(superuser, "complete", chain, payload=many, payload_street="Main", payload_lines=many)
    [[error]] = reply.context["form"].errors.values()
    assert "bytes of JSON; the limit is 200 (JOBCHAINS['MAX_PAYLOAD_BYTES'])" in error
    small = json.dumps(["ä" * 60])  # longer than the limit only as escaped text
    reply = act(superuser, "complete", chain, payload="[1]", payload_street="Main", payload_lines=small)
    assert messages_in(reply) == ["1 job completed."]


class Node(BaseModel):
    name: str
    children: "list[Node]" = []
    parent: "Node | None" = None


@pytest.mark.parametrize(
    ("output", "skeleton"),
    [
        (tuple[int, str], '[\n  0,\n  ""\n]'),
        (list[Address], "[]"),
        (int, "0"),
        (Colour, '"red"'),
        (Address | Model, '{\n  "street": ""\n}'),
        (dict[str, int], "{}"),
        (Any, ""),
    ],
)
def test_a_type_without_members_has_one_field_with_a_skeleton(superuser, waiting, output, skeleton):
    [(name, found)] = form_of(superuser, waiting(output)).items()
    assert (name, found.initial) == ("payload", skeleton)


def test_a_type_that_contains_itself_has_fields(superuser, waiting):
    chain = waiting(Node)
    assert set(form_of(superuser, chain)) == {"name", "children", "parent"}
    answer(superuser, chain, name="root", children='[{"name": "leaf"}]', parent="")
    leaf = {"name": "leaf", "children": [], "parent": None}
    assert chain.refresh().stored_output == {"name": "root", "children": [leaf], "parent": None}
