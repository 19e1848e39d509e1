"""Dataclasses, TypedDicts and pydantic models are checked when they are enqueued and rebuilt for the handler."""

from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from typing_extensions import TypedDict

from django_jobchains.exceptions import InvalidInput
from django_jobchains.payloads import Codec
from django_jobchains.processors import JobType, Processors, Registry, RunningJob
from django_jobchains.texts import traceback_of
from django_jobchains.worker import Worker
from tests.attempts.work import committed

pydantic = pytest.importorskip("pydantic")


class Colour(Enum):
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


class Customer(pydantic.BaseModel):  # type: ignore[misc, name-defined]
    name: str
    address: Address
    points: list[Point] = []


ORDER = Order(
    number=1,
    placed_at=datetime(2026, 2, 3, 4, 5, 6, 789_012, tzinfo=UTC),
    due=date(2026, 2, 4),
    patience=timedelta(days=2, microseconds=5),
    lines=[Line(UUID(int=5), Decimal("0.10"), (Colour.RED, Colour.RED))],
    tags={"a"},  # of more the JSON would have an order of chance
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
def test_the_handler_gets_an_equal_value_of_the_same_type(annotation: Any, value: Any) -> None:
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
    assert chain.input == chain.output


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (Line, "x", r"pass Line\(product=…, price=…, colours=…\), not str\."),
        (Line, None, r"pass Line\(product=…, price=…, colours=…\), not None\."),
        (Line, {"product": str(UUID(int=5)), "price": "1"}, r"pass Line\(product=…, price=…, colours=…\), not dict\."),
        (Line, Line("no uuid", Decimal(1)), "product: .*valid uuid"),  # type: ignore[arg-type]
        (Line, Line(UUID(int=5), "a lot"), "price: .*decimal"),  # type: ignore[arg-type]
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
def test_a_value_of_another_type_is_invalid_input_with_the_reason(annotation: Any, value: Any, words: str) -> None:
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
def test_a_typed_value_that_cannot_be_stored_is_refused_with_its_path(annotation: Any, value: Any, path: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        JobType("typed", input=annotation).item(value)
    assert caught.value.path == path


@dataclass
class Open:
    value: Any


@pytest.mark.parametrize("value", [datetime(2026, 1, 1, tzinfo=UTC), (1, 2), {1, 2}, Decimal(1), UUID(int=1), {1: 2}])
def test_what_would_come_back_as_something_else_is_refused_where_the_type_does_not_say(value: Any) -> None:
    """A datetime in a field of Any would reach the handler as a string."""
    with pytest.raises(InvalidInput):
        JobType("open", input=Open).item(Open(value))


def test_a_custom_validator_is_heard_at_enqueue() -> None:
    def even(number: int) -> int:
        if number % 2:
            raise ValueError("only even numbers")
        return number

    job_type: JobType[Any, Any] = JobType("even", input=Annotated[int, pydantic.AfterValidator(even)])  # type: ignore[arg-type]
    job_type.item(2)
    with pytest.raises(InvalidInput, match="only even numbers"):
        job_type.item(3)


@dataclass
class Login:
    user: str
    pin: int = 0


@pytest.mark.parametrize("value", [Login("a", "hunter2"), Login("a", "6162"), Login(6162)])  # type: ignore[arg-type]
def test_an_error_about_a_value_does_not_quote_it(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        JobType("login", input=Login).item(value)
    assert "Input should be a valid" in str(caught.value)
    assert_not_quoted(caught.value, "hunter2", "6162")


@pytest.mark.parametrize("text", ['{"user": ["hunter2"]}', '{"pin": "hunter2"}', '["hunter2"]'])
def test_an_error_about_a_stored_value_does_not_quote_it(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^Not a Login: ") as caught:
        Codec(Login).decode(text, InvalidInput)
    assert_not_quoted(caught.value, "hunter2")


def test_a_value_that_would_change_is_not_quoted() -> None:
    with pytest.raises(InvalidInput, match="another value") as caught:
        JobType("open", input=Open).item(Open(("hunter2",)))
    assert "hunter2" not in str(caught.value)


def assert_not_quoted(error: InvalidInput, *values: str) -> None:
    text = traceback_of(error)
    assert "InvalidInput" in text
    assert not any(value in text for value in values)
