"""The contract of an object that converts inputs or outputs."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from django_jobchains.exceptions import InvalidInput
from django_jobchains.payloads.types import Codec, PayloadType, is_payload_type


class PayloadTypeContract:
    """The tests that every ``PayloadType`` passes. Define how one is created, and examples of values::

    class TestMoneyType(PayloadTypeContract):
        def make(self) -> PayloadType[Money]:
            return MoneyType()

        values = (Money(5, "EUR"), Money(0, "USD"))
        invalid_values = ("5 EUR", None)
        invalid_json = ({}, {"amount": "much"}, None)
    """

    #: Values of the type.
    values: Sequence[Any] = ()
    #: Values of other types, which are not JSON of this type either.
    invalid_values: Sequence[Any] = ()
    #: JSON values that do not fit the type.
    invalid_json: Sequence[Any] = ()

    def make(self) -> PayloadType[Any]:
        """Create the object that is passed as ``input=`` or ``output=``."""
        raise NotImplementedError

    @pytest.fixture
    def payload_type(self) -> PayloadType[Any]:
        return self.make()

    def test_it_has_the_methods_of_a_payload_type_and_examples(self, payload_type: PayloadType[Any]) -> None:
        assert is_payload_type(payload_type)
        assert self.values, "values has no examples"
        assert self.invalid_json, "Add examples to invalid_json."

    def test_a_value_is_read_back_equal_and_of_the_same_type(self, payload_type: PayloadType[Any]) -> None:
        codec = Codec(payload_type)
        for value in self.values:
            back = codec.decode(codec.encode(value, InvalidInput), InvalidInput)
            assert back == value
            assert type(back) is type(value)

    def test_its_json_is_accepted_in_place_of_a_value(self, payload_type: PayloadType[Any]) -> None:
        codec = Codec(payload_type)
        for value in self.values:
            text = codec.encode(value, InvalidInput)
            assert json.loads(codec.encode(json.loads(text), InvalidInput)) == json.loads(text)

    def test_values_of_other_types_are_invalid(self, payload_type: PayloadType[Any]) -> None:
        for value in self.invalid_values:
            with pytest.raises(InvalidInput):
                Codec(payload_type).encode(value, InvalidInput)

    def test_json_that_does_not_fit_is_invalid(self, payload_type: PayloadType[Any]) -> None:
        for value in self.invalid_json:
            with pytest.raises(InvalidInput):
                Codec(payload_type).decode(json.dumps(value), InvalidInput)

    def test_loading_does_not_change_the_json_value(self, payload_type: PayloadType[Any]) -> None:
        for value in self.values:
            plain = payload_type.dump(value)
            text = json.dumps(plain)
            payload_type.load(plain)
            assert json.dumps(plain) == text

    def test_a_schema_is_a_json_object(self, payload_type: PayloadType[Any]) -> None:
        schema = Codec(payload_type).json_schema()
        assert schema is None or isinstance(json.loads(json.dumps(schema)), dict)
