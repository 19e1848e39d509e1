"""The JSON Schema of a codec."""

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import PlainValidator

from django_jobchains.payloads.types import Codec


@dataclass(frozen=True)
class Order:
    number: int


def test_a_dataclass_has_a_json_schema():
    schema = Codec(Order).json_schema()
    assert schema is not None
    assert schema["properties"]["number"]["type"] == "integer"


def test_any_json_has_no_schema():
    assert Codec().json_schema() is None


def test_a_type_that_only_python_can_check_has_no_schema():
    assert Codec(Annotated[Any, PlainValidator(str)]).json_schema() in (None, {})
    assert Codec(Annotated[type, "a class"]).json_schema() is None
