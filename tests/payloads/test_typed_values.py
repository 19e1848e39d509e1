"""Dataclasses, TypedDicts and pydantic models are validated when they are enqueued, and rebuilt for the handler."""

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pydantic
import pytest
from pydantic.alias_generators import to_camel
from typing_extensions import TypedDict

from django_jobchains.exceptions import InvalidInput
from django_jobchains.payloads.types import Codec
from django_jobchains.processors import JobType
from django_jobchains.text.errors import describe, traceback_of
from tests.support.attempts import committed


class Colour(Enum):
    RED = "red"


class Shade(StrEnum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float


@dataclass(frozen=True)
class Line:
    product: UUID
    price: Decimal
    colours: tuple[Colour, ...] = ()


@dataclass
class Order:
    number: int
    placed_at: datetime
    due: date | None
    patience: timedelta
    lines: list[Line]
    tags: set[str] = field(default_factory=set)
    position: tuple[int, float] = (0, 0.0)
    counts: dict[int, str] = field(default_factory=dict)


class Address(TypedDict):
    street: str
    since: date


class Customer(pydantic.BaseModel):
    name: str
    address: Address
    points: list[Point] = []


PRODUCT = UUID(int=5)
ORDER = Order(
    number=1,
    placed_at=datetime(2026, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC),
    due=date(2026, 2, 4),
    patience=timedelta(days=2, microseconds=5),
    lines=[Line(PRODUCT, Decimal("0.10"), (Colour.RED, Colour.RED))],
    tags={"a"},  # a set with more values would have a random order in JSON
    position=(1, 2.5),
    counts={1: "one"},
)
ADDRESS = {"street": "Ä 1", "since": date(2020, 1, 1)}
CUSTOMER = Customer(name="N", address=ADDRESS, points=[Point(1, 2.0)])
#: Python considers these unequal to the same times with another time zone object.
BERLIN = ZoneInfo("Europe/Berlin")
SKIPPED = datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN)
REPEATED = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)


def stored(annotation, value):
    return Codec(annotation).encode(value, InvalidInput)


def read(annotation, text):
    return Codec(annotation).decode(text, InvalidInput)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, ORDER),
        (Address, ADDRESS),
        (Customer, CUSTOMER),
        (Customer | Order, ORDER),
        (tuple[int, datetime], (1, datetime(2026, 1, 1, tzinfo=UTC))),
        (datetime | None, None),
        (Decimal, Decimal("1e-10")),
        (frozenset[int], frozenset({1, 2})),
        (Literal["a", "b"], "b"),
        (Point, Point(3, 4.0)),
        (float, 1e23),
        (bytes, b"plain"),
        (dict[int, str], {1: "a"}),
        (dict[int, int], {-1: 2}),
        (list[dict[bool, int] | None], [{True: 1, False: 0}]),
        (dict[UUID, int], {PRODUCT: 1}),
    ],
    ids=lambda value: getattr(value, "__name__", None) or type(value).__name__,
)
def test_a_value_is_read_back_equal_and_with_the_same_type(annotation, value):
    back = read(annotation, stored(annotation, value))
    assert back == value
    assert type(back) is type(value)


@committed
def test_handlers_and_readers_get_the_value(processors, work):
    seen = []

    @processors.register("typed", input=Order, output=Order)
    def typed(job):
        seen.append(job.input)
        return job.input

    chain = typed.enqueue(ORDER)
    work()
    assert [*seen, chain.refresh().output] == [ORDER] * 2
    assert chain.input == chain.stored_output == json.loads(stored(Order, ORDER))


class Shift(pydantic.BaseModel):
    starts: list[datetime]


@dataclass(frozen=True, slots=True)
class Visit:
    at: datetime
    others: dict[str, tuple[datetime, ...]] = field(default_factory=dict)


@pytest.mark.parametrize("at", [SKIPPED, REPEATED, REPEATED.replace(fold=1)])
def test_a_local_time_that_is_skipped_or_repeated_stays_the_same_instant(at):
    for annotation, value in [(datetime, at), (Visit, Visit(at, {"a": (at, at)})), (Shift, Shift(starts=[at]))]:
        text = stored(annotation, value)
        assert at.isoformat() in text
        assert stored(annotation, read(annotation, text)) == text


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (Line, "x", r"pass Line\(product=…, price=…, colours=…\), not str\."),
        (Line, {"price": "1"}, "product: .*required"),
        (Line, Line("no uuid", Decimal(1)), "product: .*valid uuid"),
        (Line, Line(PRODUCT, "a lot"), "price: .*decimal"),
        (Address, {"street": "A"}, "since: Field required"),
        (Customer, ADDRESS, r"pass Customer\(name=…, address=…, points=…\), not dict\."),
        (int, "x", "pass int, not str"),
        (int | None, "x", "pass .*, not str"),
        (list[int], [1, "x"], r"1: .*valid integer"),
        (Literal["a"], "b", "Literal|'a'|literal"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_reason(annotation, value, words):
    with pytest.raises(InvalidInput, match=f"(?is)^Input of '.*': not an? .*({words})"):
        JobType("typed", input=annotation).item(value)


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (list[float], [1.0, float("nan")], "$[1]"),
        (Address, {"street": "\0", "since": date(2020, 1, 1)}, "$.street"),
        (dict[str, Any], {"a": {"b": "\0"}}, "$.a.b"),
    ],
)
def test_a_typed_value_that_cannot_be_stored_is_refused_with_its_path(annotation, value, path):
    with pytest.raises(InvalidInput) as caught:
        JobType("typed", input=annotation).item(value)
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("annotation", "value", "text"),
    [
        (int, 5.0, "5"),
        (bool, 1, "true"),
        (float, 5, "5.0"),
        (list[float], [5], "[5.0]"),
        (str, Shade.RED, '"red"'),
        (dict[str, int], {"a": "5"}, '{"a":5}'),
        (float, 2**53 + 1, "9007199254740992.0"),
    ],
)
def test_values_are_stored_with_the_json_type_of_the_annotation(annotation, value, text):
    assert stored(annotation, value) == text


@dataclass
class Open:
    value: Any


@dataclass(eq=False)
class Plain:
    number: int
    at: datetime | None = None
    note: str = field(default="", compare=False)


@dataclass(eq=False)
class Special(Plain):
    extra: str = ""


@dataclass(eq=False)
class Vague:
    parts: list[Plain] = field(default_factory=list)
    value: Any = None


def test_a_dataclass_without_comparison_is_rebuilt():
    parts = read(Vague, stored(Vague, Vague([Plain(1, REPEATED), Plain(2, note="n")]))).parts
    assert [(type(part), part.number, part.note) for part in parts] == [(Plain, 1, ""), (Plain, 2, "n")]
    assert parts[0].at.isoformat() == REPEATED.isoformat()


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (list[Any], [(1, 2)]),
        *(
            (Open, Open(part))
            for value in (datetime(2026, 1, 1, tzinfo=UTC), ("hunter2", 2), {1, 2}, Decimal(1), UUID(int=1), {1: 2})
            for part in (value, [REPEATED, value], {"at": value})
        ),
        (Plain, Special(1, extra="lost")),
        (Plain, Special(1)),
        (Vague, Vague([Special(1, extra="lost")])),
        (Vague, Vague(value=datetime(2026, 1, 1, tzinfo=UTC))),
    ],
)
def test_a_value_that_would_be_read_back_as_another_is_refused_and_not_quoted(annotation, value):
    """A datetime in a field of type Any would reach the handler as a string."""
    with pytest.raises(InvalidInput, match=r"another value|is not JSON|must be a string") as caught:
        JobType("open", input=annotation).item(value)
    assert "hunter2" not in str(caught.value)


class Doubled(pydantic.BaseModel):
    number: Annotated[int, pydantic.AfterValidator(lambda number: number * 2)]


class Account(pydantic.BaseModel):
    token: pydantic.SecretStr = pydantic.SecretStr("hunter2")
    tries: dict[date, list[Doubled]] = {}


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Account(), "$.token._secret_value"),
        (
            Account(token="", tries={date(2026, 1, 1): [Doubled(number=0), Doubled(number=1)]}),
            "$.tries.2026-01-01[1].number",
        ),
    ],
)
def test_an_error_about_a_changed_value_names_the_part(value, path):
    with pytest.raises(InvalidInput, match="another value") as caught:
        JobType("open", input=Account).item(value)
    assert (caught.value.path, f"at {path}: " in str(caught.value)) == (path, True)


@pytest.mark.parametrize(
    ("annotation", "value", "is_stored_as_given"),
    [
        (Line, {"product": str(PRODUCT), "price": "1"}, False),
        (Order, json.loads(stored(Order, ORDER)), True),
        (Customer, {"name": "N", "address": {"street": "A", "since": "2020-01-01"}}, False),
        (Address, {"street": "A", "since": "2020-01-01"}, True),
        (datetime, "2026-01-01T00:00:00Z", True),
        (list[Annotated[str, pydantic.AfterValidator(str.lower)]], ["A"], False),
    ],
)
def test_json_that_fits_the_type_is_accepted_instead_of_a_value(annotation, value, is_stored_as_given):
    text = stored(annotation, value)
    assert read(annotation, text) == pydantic.TypeAdapter(annotation).validate_python(value)
    assert (json.loads(text) == value) == is_stored_as_given


@dataclass
class Parcel:
    weight: Annotated[int, pydantic.Field(alias="grams")]


class Label(TypedDict):
    text: Annotated[str, pydantic.Field(alias="Text")]


class Dispatch(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(alias_generator=to_camel, extra="forbid")

    sent_at: date
    parcels: list[Parcel] = []


class Route(pydantic.BaseModel):
    start: str = pydantic.Field(validation_alias=pydantic.AliasChoices("from", pydantic.AliasPath("ends", 0)))
    end: str = pydantic.Field(validation_alias="to", serialization_alias="toCity")


class ByName(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(populate_by_name=True)

    type: str = pydantic.Field(alias="kind")
    name: str = pydantic.Field(alias="title")
    config: str = pydantic.Field("", alias="options")


class Serialized(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(serialize_by_alias=True)

    total: int = pydantic.Field(serialization_alias="sum")


WITH_ALIASES = [
    (ByName, {"kind": "a", "title": "b"}, {"type": "a", "name": "b", "config": ""}),
    (Serialized, {"total": 1}, {"total": 1}),
    (Parcel, {"grams": 5}, {"weight": 5}),
    (Label, {"Text": "a"}, {"text": "a"}),
    (
        list[Dispatch],
        [{"sentAt": "2026-01-01", "parcels": [{"grams": 5}]}],
        [{"sent_at": "2026-01-01", "parcels": [{"weight": 5}]}],
    ),
    (Route, {"ends": ["A"], "to": "B"}, {"start": "A", "end": "B"}),
]


@pytest.mark.parametrize(("annotation", "given", "by_name"), WITH_ALIASES)
def test_fields_with_an_alias_are_stored_by_their_names(annotation, given, by_name):
    value = pydantic.TypeAdapter(annotation).validate_python(given)
    for accepted in (value, given, by_name):
        text = stored(annotation, accepted)
        assert json.loads(text) == by_name
        assert read(annotation, text) == value
    assert read(annotation, json.dumps(given)) == value


@pytest.mark.parametrize(
    ("annotation", "properties"),
    [
        (Line, {"product", "price", "colours"}),
        (ByName, {"type", "name", "config"}),
        (Any, None),
        (Annotated[Any, pydantic.PlainValidator(str)], None),
        (Annotated[type, "a class"], None),
    ],
)
def test_a_type_that_only_python_can_check_has_no_schema(annotation, properties):
    schema = Codec(annotation).json_schema() or {}
    assert schema.get("properties", {}).keys() == (properties or set())


# Values may be secret, and errors are stored and logged

SECRET = "hunter2"


@dataclass
class Login:
    user: str
    pin: int = 0


class Card(pydantic.BaseModel):
    number: str

    @pydantic.field_validator("number")
    @classmethod
    def _known(cls, number):
        if number == SECRET:
            raise ValueError(f"unknown number {number}")
        if number == "6162":
            raise KeyError(number)
        return number


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (Login, Login("a", SECRET), "Input should be a valid"),
        (Login, Login(6162), "Input should be a valid"),
        (Login, {"user": "a", "pin": SECRET}, "Input should be a valid"),
        (Card, {"number": SECRET}, "value_error"),
        (Card, {"number": "6162"}, r"KeyError in _known, line \d+ of .*test_typed_values"),
    ],
)
def test_an_error_does_not_quote_the_value(annotation, value, words):
    job_type = JobType("secret", input=annotation)
    calls = [lambda: job_type.item(value)]
    if isinstance(value, dict):
        calls.append(lambda: job_type.input_codec.decode(json.dumps(value), InvalidInput))
    for call in calls:
        with pytest.raises(InvalidInput, match=f"(?i)not an? {annotation.__name__}: .*{words}") as caught:
            call()
        text = traceback_of(caught.value)
        assert "InvalidInput" in text
        assert SECRET not in text
        assert "6162" not in text
        error = caught.value
        while error := error.__context__:
            assert type(error) is InvalidInput, "an error tracker may also send the context, which quotes the value"


@pytest.mark.parametrize(
    "fails",
    [
        lambda: Card(number=[SECRET]),
        lambda: Card(number=SECRET),
        lambda: Card.model_construct(number=[SECRET]).model_dump(warnings="error"),
    ],
)
def test_errors_of_pydantic_are_described_without_values(fails):
    with pytest.raises(Exception, match=SECRET) as caught:
        fails()
    inner = caught.value
    with pytest.raises(RuntimeError) as outer:
        raise RuntimeError("the card was refused") from inner
    assert SECRET not in describe(inner)
    for error in (inner, outer.value, ExceptionGroup("several", [ExceptionGroup("inner", [inner])])):
        text = traceback_of(error)
        assert type(inner).__name__ in text
        assert SECRET not in text
        assert "in test_errors_of_pydantic_are_described" in text
