"""What is masked where it is shown, and that it takes no longer than the text is long."""

import time
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from django.utils.safestring import SafeString, mark_safe

from django_jobchains.conf import SENSITIVE_FIELDS, get_settings
from django_jobchains.redaction import MASK, redacted, redacted_text

SECRET = "hunter2"

TEXTS = [
    "password=hunter2",
    "user_password = hunter2",
    "connect(password='hunter2', timeout=3)",
    'connect(password="hun\\"ter2 hunter2")',
    "{'api_key': 'x hunter2', 'a': 1}",
    '{"apiKey": "hunter2"}',
    '{\\"token\\": \\"a hunter2\\"}',
    "Authorization: Bearer hunter2",
    "authorization=Bearer hunter2",
    "('Authorization', 'Bearer hunter2')",
    "headers['X-Api-Key'] = 'hunter2'",
    "token=SecretStr('a hunter2')",
    "password=b'hunter2'",
    '"tokens": ["a", {"b": "]"}, "hunter2"]',
    "secrets = {'a': {'b': 1}, 'c': 'hunter2'}",
    "https://example.com/?access_token=hunter2&page=1",
    "access_token%3Dhunter2",
    "Cookie: a=1; b=hunter2",
    "postgresql://jobs:hunter2@127.0.0.1/jobs",
    "PRIVATE KEY: hunter2",
    "password => hunter2",
    "card-number: 4111 hunter2",
    "token = (\n 'hunter2'\n)",
    "pa\u017f\u017fword=hunter2",
]
HARMLESS = [
    "ValueError: the order 17 is closed",
    "Invalid token",
    "the password is wrong",
    "https://example.com/a:b@c",
    "token",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_value_after_a_sensitive_name_is_masked(text: str) -> None:
    assert SECRET not in redacted_text(text)
    assert MASK in redacted_text(text)


@pytest.mark.parametrize("text", TEXTS)
def test_what_was_masked_is_left_as_it_is(text: str) -> None:
    assert redacted_text(redacted_text(text)) == redacted_text(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_a_text_without_a_secret_stays_as_it_is(text: str) -> None:
    assert redacted_text(text) == text


def test_what_stands_around_a_secret_stays() -> None:
    assert redacted_text("charge(17, token='hunter2') failed") == f"charge(17, token='{MASK}') failed"
    assert redacted_text("a=1&token=hunter2&b=2") == f"a=1&token={MASK}&b=2"
    assert redacted_text("secret: hunter2\nValueError: x") == f"secret: {MASK}\nValueError: x"


def test_values_of_sensitive_keys_are_masked_at_any_depth() -> None:
    value = {"a": [{"userPassword": SECRET, "b": {"Token": {"x": SECRET}}, "cvv": 123}], "text": "secret=hunter2"}
    assert redacted(value) == {
        "a": [{"userPassword": MASK, "b": {"Token": MASK}, "cvv": MASK}],
        "text": f"secret={MASK}",
    }


def test_true_false_and_null_are_no_secrets() -> None:
    assert redacted({"token": None, "has_password": True}) == {"token": None, "has_password": True}


def test_the_given_value_is_not_changed() -> None:
    value = {"a": {"token": SECRET}}
    redacted(value)
    assert value == {"a": {"token": SECRET}}


def test_a_value_may_be_nested_as_deeply_as_it_likes() -> None:
    value: list[Any] = []
    for _ in range(50_000):
        value = [value]
    part = redacted(value)
    for _ in range(50_000):
        part = part[0]
    assert part == []


def test_a_text_that_claims_to_be_safe_comes_back_as_text() -> None:
    assert not isinstance(redacted_text(mark_safe("<b>")), SafeString)
    assert not isinstance(redacted([mark_safe("<b>")])[0], SafeString)


@override_settings(JOBCHAINS={"SENSITIVE_FIELDS": [*SENSITIVE_FIELDS, "tax number"]})
def test_a_project_adds_names() -> None:
    assert redacted({"taxNumber": SECRET, "token": SECRET}) == {"taxNumber": MASK, "token": MASK}


@override_settings(JOBCHAINS={"SENSITIVE_FIELDS": ["(a+)+"]})
def test_a_name_is_no_pattern() -> None:
    assert redacted({"aaa": 1, "x(a+)+": 1}) == {"aaa": 1, "x(a+)+": MASK}


@override_settings(JOBCHAINS={"SENSITIVE_FIELDS": []})
def test_without_names_only_addresses_are_masked() -> None:
    assert redacted({"password": SECRET}) == {"password": SECRET}
    assert redacted_text("password=hunter2 ftp://a:b@c") == f"password=hunter2 ftp://a:{MASK}@c"


@pytest.mark.parametrize("wrong", ["password", [""], ["__"], [1], None, {"a": 1}])
def test_wrong_settings_are_refused(wrong: Any) -> None:
    with (
        override_settings(JOBCHAINS={"SENSITIVE_FIELDS": wrong}),
        pytest.raises(ImproperlyConfigured, match="SENSITIVE_FIELDS"),
    ):
        get_settings()


#: Each would take a pattern that tries its ways again and again hours.
HOSTILE = [
    "a",
    "token",
    "token=",
    'token="',
    "token='",
    'token=\\"',
    "token=[",
    "token=[\"'",
    "token ",
    "token\\",
    "token',",
    "token:\n",
    "://",
    "://a:",
    "://a:b",
    "token=bearer ",
]


@pytest.mark.parametrize("part", HOSTILE)
def test_no_text_takes_longer_than_its_length(part: str) -> None:
    def seconds(length: int) -> float:
        text = "token" + " " * 100 + part * (length // len(part))
        best = 1e9
        for _ in range(2):
            begin = time.thread_time()
            redacted_text(text)
            best = min(best, time.thread_time() - begin)
        return best

    # By the processor's time, for others use it too.
    # Eight times the text takes about eight times as long; 64 times if it were the square.
    assert seconds(160_000) < 25 * seconds(20_000) + 0.05
