"""The contracts of payload codecs, and of objects that convert inputs or outputs."""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_jobchains.exceptions import InvalidInput
from django_jobchains.payloads.codecs import PayloadCodec
from django_jobchains.payloads.types import Codec, PayloadType, is_payload_type

#: Values that JSON can express, and that a careless conversion would change.
JSON_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**53 + 1,
    0.1,
    1e-7,
    "",
    "null",
    "naïve ✓ 😀",
    "' \" \\ % %s {} $1 ?",
    "line\nbreak\ttab",
    [],
    {},
    [1, [2, [None, {"a": []}]]],
    {"": 1, "a b": {"c": [True, False]}},
)
#: A word that an encoded text must not contain.
CANARY = "canary4711"
TEXTS = ("", "naïve ✓ 😀", "line\nbreak", "x" * 1_000_000, *map(json.dumps, JSON_VALUES))


class PayloadCodecContract:
    """The tests that every payload codec must pass.

    Define how one is created::

        class TestMine(PayloadCodecContract):
            def make(self) -> PayloadCodec:
                return MyCodec(key="…")
    """

    #: Whether encoded texts are unreadable. Set it to False for a codec that only compresses, for example.
    hides = True

    def make(self) -> PayloadCodec:
        """Create a codec. Tests create several, as several processes would."""
        raise NotImplementedError

    @pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
    def test_another_process_decodes_what_one_has_encoded(self, text: str) -> None:
        encoded = self.make().encode(text)
        assert type(encoded) is str
        assert self.make().decode(encoded) == text

    @pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
    def test_every_database_can_store_an_encoded_text(self, text: str) -> None:
        encoded = self.make().encode(text)
        assert "\0" not in encoded
        encoded.encode()

    def test_an_encoded_text_is_unreadable(self) -> None:
        if not self.hides:
            pytest.skip("hides nothing")
        encoded = self.make().encode(f'{{"name": "{CANARY}"}}')
        assert CANARY not in encoded

    @pytest.mark.parametrize("text", ["", "not encoded", '{"name": "Ann"}'])
    def test_a_text_that_was_not_encoded_is_refused(self, text: str) -> None:
        with pytest.raises(Exception):  # noqa: B017, PT011 - any error is right
            self.make().decode(text)

    def test_threads_share_a_codec(self) -> None:
        codec = self.make()
        texts = [f"{number} {CANARY}" for number in range(1_000)]
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(lambda text: codec.decode(codec.encode(text)), texts)) == texts


class PayloadTypeContract:
    """The tests that every ``PayloadType`` must pass.

    Define how one is created, and examples of values::

        class TestMoneyType(PayloadTypeContract):
            def make(self) -> PayloadType[Money]:
                return MoneyType()

            values = (Money(5, "EUR"), Money(0, "USD"))
            invalid_values = ("5 EUR", None)
            invalid_json = ({}, {"amount": "much"}, None)
    """

    #: Values of the type.
    values: Sequence[Any] = ()
    #: Values of other types, which are also not the JSON of a value of this type.
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
