"""Dataclasses, TypedDicts and pydantic models are validated when they are enqueued, and rebuilt for the handler."""

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from typing_extensions import TypedDict

from django_jobchains.exceptions import InvalidInput
from django_jobchains.payloads.types import Codec
from django_jobchains.processors import JobType, Processors, Registry, RunningJob
from django_jobchains.text.errors import describe, traceback_of
from django_jobchains.worker import Worker
from tests.support.attempts import committed

pydantic = pytest.importorskip("pydantic")
TypeAdapter = pydantic.TypeAdapter


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


ORDER = Order(
    number=1,
    placed_at=datetime(2026, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC),
    due=date(2026, 2, 4),
    patience=timedelta(days=2, microseconds=5),
    lines=[Line(UUID(int=5), Decimal("0.10"), (Colour.RED, Colour.RED))],
    tags={"a"},  # a set with more values would have a random order in JSON
    position=(1, 2.5),
    counts={1: "one"},
)
ADDRESS: Address = {"street": "Ä 1", "since": date(2020, 1, 1)}
CUSTOMER = Customer(name="N", address=ADDRESS, points=[Point(1, 2.0)])


@committed
@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Order, ORDER),
        (Address, ADDRESS),
        (Customer, CUSTOMER),
        (list[Order], [ORDER, ORDER]),
        (dict[str, Customer], {"one": CUSTOMER}),
        (Customer | Order, ORDER),
        (tuple[int, datetime], (1, datetime(2026, 1, 1, tzinfo=UTC))),
        (datetime | None, None),
        (datetime, datetime(2026, 6, 1, 12, tzinfo=UTC)),
        (Decimal, Decimal("1e-10")),
        (frozenset[int], frozenset({1, 2})),
        (Literal["a", "b"], "b"),
        (Point, Point(3, 4.0)),
        (float, 1e23),
        (bytes, b"plain"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or type(value).__name__,
)
def test_the_handler_gets_an_equal_value_of_the_same_type(annotation, value):
    seen: list[Any] = []
    processors, registry = Processors(), Registry()

    @processors.register("typed", input=annotation, output=annotation)
    def typed(job: RunningJob[Any]) -> Any:
        seen.append(job.input)
        return job.input

    registry.add(processors)
    chain = typed.enqueue(value)
    Worker(slots=1, registry=registry).run_until_idle()
    assert chain.refresh().status == "completed", chain.current_job.last_error
    assert seen == [value]
    assert type(seen[0]) is type(value)
    assert chain.input == chain.stored_output
    assert chain.output == value
    assert type(chain.output) is type(value)


class Shift(pydantic.BaseModel):
    starts: list[datetime]


@dataclass(frozen=True, slots=True)
class Visit:
    at: datetime
    others: dict[str, tuple[datetime, ...]] = field(default_factory=dict)


BERLIN = ZoneInfo("Europe/Berlin")
OMITTED = datetime(2026, 3, 29, 2, 30, tzinfo=BERLIN)
REPEATED = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)


@pytest.mark.parametrize("at", [OMITTED, REPEATED, REPEATED.replace(fold=1)])
def test_a_local_time_that_is_skipped_or_repeated_stays_the_same_instant(at):
    """Python considers it unequal to the same time with another time zone object."""
    for annotation, value in [
        (datetime, at),
        (Visit, Visit(at, {"a": (at, at)})),
        (Shift, Shift(starts=[at])),
    ]:
        codec = Codec(annotation)
        text = codec.encode(value, InvalidInput)
        assert at.isoformat() in text
        assert codec.encode(codec.decode(text, InvalidInput), InvalidInput) == text


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (Line, "x", r"pass Line\(product=…, price=…, colours=…\), not str\."),
        (Line, None, r"pass Line\(product=…, price=…, colours=…\), not None\."),
        (Line, {"product": str(UUID(int=5)), "price": "hunter2"}, "price: .*decimal"),
        (Line, {"price": "1"}, "product: .*required"),
        (Line, Line("no uuid", Decimal(1)), "product: .*valid uuid"),
        (Line, Line(UUID(int=5), "a lot"), "price: .*decimal"),
        (Address, {"street": 1, "since": date(2020, 1, 1)}, "str"),
        (Address, {"street": "A"}, "since: Field required"),
        (Customer, ADDRESS, r"pass Customer\(name=…, address=…, points=…\), not dict\."),
        (int, "x", "pass int, not str"),
        (int, None, "pass int, not None"),
        (int | None, "x", "pass .*, not str"),
        (list[int], [1, "x"], r"1: .*valid integer"),
        (Literal["a"], "b", "Literal|'a'|literal"),
        (dict[str, int], [1], "dict"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_reason(annotation, value, words):
    job_type = JobType("typed", input=annotation)
    with pytest.raises(InvalidInput, match=f"(?is)^Not a .*({words})"):
        job_type.item(value)


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
        (int, 5, "5"),
        (int, 5.0, "5"),
        (bool, 1, "true"),
        (float, 5, "5.0"),
        (list[float], [5], "[5.0]"),
        (str, Shade.RED, '"red"'),
        (dict[str, int], {"a": "5"}, '{"a":5}'),
        (list[Any], [(1, 2)], None),
        (float, 2**53 + 1, "9007199254740992.0"),
    ],
)
def test_values_are_stored_with_the_json_type_of_the_annotation(annotation, value, text):
    """Values that already have the type are not converted."""
    codec = Codec(annotation)
    if text is None:
        with pytest.raises(InvalidInput):
            codec.encode(value, InvalidInput)
    else:
        assert codec.encode(value, InvalidInput) == text


@dataclass
class Open:
    value: Any


@pytest.mark.parametrize("value", [datetime(2026, 1, 1, tzinfo=UTC), (1, 2), {1, 2}, Decimal(1), UUID(int=1), {1: 2}])
def test_a_value_that_would_be_read_back_as_another_is_refused(value):
    """A datetime in a field of type Any would reach the handler as a string."""
    for part in (value, [REPEATED, value], {"at": value}):
        with pytest.raises(InvalidInput):
            JobType("open", input=Open).item(Open(part))


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
    codec = Codec(Vague)
    text = codec.encode(Vague([Plain(1, REPEATED), Plain(2, note="n")]), InvalidInput)
    parts = codec.decode(text, InvalidInput).parts
    assert [type(part) for part in parts] == [Plain, Plain]
    assert [(part.number, part.note) for part in parts] == [(1, ""), (2, "n")]
    assert parts[0].at.isoformat() == REPEATED.isoformat()


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Plain, Special(1, extra="lost")),
        (Plain, Special(1)),
        (Vague, Vague([Special(1, extra="lost")])),
        (Vague, Vague(value=datetime(2026, 1, 1, tzinfo=UTC))),
    ],
)
def test_a_dataclass_without_comparison_cannot_lose_a_part(annotation, value):
    with pytest.raises(InvalidInput, match="another value"):
        JobType("plain", input=annotation).item(value)


def test_a_custom_validator_runs_when_the_value_is_enqueued():
    def even(number: int) -> int:
        if number % 2:
            raise ValueError("only even numbers")
        return number

    job_type: JobType[Any, Any] = JobType("even", input=Annotated[int, pydantic.AfterValidator(even)])
    job_type.item(2)
    with pytest.raises(InvalidInput, match="only even numbers"):
        job_type.item(3)


@dataclass
class Login:
    user: str
    pin: int = 0


@pytest.mark.parametrize(
    "value",
    [Login("a", "hunter2"), Login("a", "6162"), Login(6162), {"user": "a", "pin": "hunter2"}],
)
def test_an_error_does_not_quote_the_value(value):
    with pytest.raises(InvalidInput) as caught:
        JobType("login", input=Login).item(value)
    assert "Input should be a valid" in str(caught.value)
    assert_not_quoted(caught.value, "hunter2", "6162")


@pytest.mark.parametrize("text", ['{"user": ["hunter2"]}', '{"pin": "hunter2"}', '["hunter2"]'])
def test_an_error_does_not_quote_the_stored_value(text):
    with pytest.raises(InvalidInput, match=r"^Not a Login: ") as caught:
        Codec(Login).decode(text, InvalidInput)
    assert_not_quoted(caught.value, "hunter2")


def test_an_error_about_a_changed_value_does_not_quote_it():
    with pytest.raises(InvalidInput, match="another value") as caught:
        JobType("open", input=Open).item(Open(("hunter2",)))
    assert "hunter2" not in str(caught.value)


class Card(pydantic.BaseModel):
    number: str

    @pydantic.field_validator("number")
    @classmethod
    def _known(cls, number: str) -> str:
        if number == "hunter2":
            raise ValueError(f"unknown number {number}")
        if number == "6162":
            raise KeyError(number)
        return number


@pytest.mark.parametrize("number", ["hunter2", "6162"])
def test_the_message_of_a_validator_is_omitted_if_it_quotes_the_value(number):
    job_type: JobType[Any, Any] = JobType("card", input=Card)
    for fails in (
        lambda: job_type.item({"number": number}),
        lambda: job_type.input_codec.decode(f'{{"number": "{number}"}}', InvalidInput),
    ):
        with pytest.raises(
            InvalidInput, match=r"value_error|KeyError in _known, line \d+ of .*test_typed_values"
        ) as caught:
            fails()
        assert_not_quoted(caught.value, number)


SECRET = "hunter2"


def test_errors_of_pydantic_are_described_without_values():
    for fails in (
        lambda: Card(number=[SECRET]),
        lambda: Card(number=SECRET),
        lambda: Card.model_construct(number=[SECRET]).model_dump(warnings="error"),
    ):
        with pytest.raises(Exception, match=SECRET) as caught:
            fails()
        inner = caught.value
        assert SECRET not in describe(inner)
        for error in (inner, raised_from(inner), ExceptionGroup("several", [ExceptionGroup("inner", [inner])])):
            text = traceback_of(error)
            assert type(inner).__name__ in text
            assert SECRET not in text
            assert "in test_errors_of_pydantic_are_described" in text


def raised_from(inner: Exception) -> Exception:
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError("the card was refused") from inner
    return caught.value


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        (Line, {"product": str(UUID(int=5)), "price": "1"}, {"product": str(UUID(int=5)), "price": "1", "colours": []}),
        (Order, None, None),
        (Customer, {"name": "N", "address": {"street": "A", "since": "2020-01-01"}}, None),
        (Address, {"street": "A", "since": "2020-01-01"}, {"street": "A", "since": "2020-01-01"}),
        (list[Line], [{"product": str(UUID(int=5)), "price": "1"}], None),
        (datetime, "2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
    ],
)
@pytest.mark.django_db
def test_json_that_fits_the_type_is_accepted_instead_of_a_value(annotation, value, stored):
    if value is None:
        value = json.loads(JobType("typed", input=Order).item(ORDER).input)
    job_type: JobType[Any, Any] = JobType("typed", input=annotation)
    item = job_type.item(value)
    rebuilt = job_type.input_codec.decode(item.input, InvalidInput)
    assert rebuilt == TypeAdapter(annotation).validate_python(value)
    if stored is not None:
        assert json.loads(item.input) == stored


def assert_not_quoted(error: InvalidInput, *values: str) -> None:
    text = traceback_of(error)
    assert "InvalidInput" in text
    assert not any(value in text for value in values)
