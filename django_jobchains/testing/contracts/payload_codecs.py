"""The contract of a payload codec."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from django_jobchains.payloads.codecs import PayloadCodec

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
    """The tests that every payload codec passes. Define how one is created::

    class TestMine(PayloadCodecContract):
        def make(self) -> PayloadCodec:
            return MyCodec(key="…")
    """

    #: Whether encoded texts are unreadable. False for one that only compresses, for example.
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
