"""What redaction masks, and that its time is linear in the length of the text."""

import json
import time

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from django.utils.safestring import SafeString, mark_safe

from django_jobchains.conf import SENSITIVE_FIELDS, get_settings
from django_jobchains.text.redaction import MASK, redacted, redacted_text

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
    "password=aa,hunter2",
    "password=aa;hunter2",
    "password=aa&hunter2, user=x",
    "login(password=aa,hunter2,user=bb)",
    "token='cut off, hunter2",
    '{"token": "cut off hunter2',
    "token=[it's a, hunter2]",
    '["Authorization", SecretStr("hunter2")]',
    "('Authorization', Bearer hunter2)",
    "[['Accept', 'x'], ['X-Api-Key', 'hunter2']]",
    '{"name": "Authorization", "value": "Bearer hunter2"}',
    '{"name": "X-Api-Key", "in": "header", "is": 1, "value": "hunter2"}',
    '"token", "hunter2"\n"a": 1, "value": 5',
    "{'key': 'db_password', 'value': ['a', 'hunter2']}",
    '{\\"name\\": \\"Cookie\\", \\"value\\": \\"hunter2\\"}',
    "Header(name='Authorization', value='Bearer hunter2')",
    '{"value": "Bearer hunter2", "name": "Authorization"}',
    "postgresql://jobs:hun/hunter2@127.0.0.1/jobs",
    "postgresql://jobs:hun@hunter2@127.0.0.1/jobs",
    "postgresql://jobs:12/hunter2@127.0.0.1/jobs",
    "postgresql://jobs:a:b?c#hunter2@127.0.0.1/jobs",
    "https://jobs:it's-hunter2@example.com/",
    f"redis://:{'x' * 5_000}hunter2@127.0.0.1",
    f"redis://{'u' * 5_000}:hunter2@127.0.0.1",
    "nats://a:hunter2@one:4222,nats://b:hunter2@two:4222",
    "postgresql://jobs:hunter2",
    "private_key=-----BEGIN RSA PRIVATE KEY-----\nA: 4,B\n\nhunter2\nhunter2\n-----END RSA PRIVATE KEY-----\n",
    "private_key: |\n  -----BEGIN PRIVATE KEY-----\n  hunter2\n  -----END PRIVATE KEY-----\n",
    "key=-----BEGIN OPENSSH PRIVATE KEY-----\nhunter2\n-----END OPENSSH PRIVATE KEY-----",
    "private_key=-----BEGIN EC PRIVATE KEY-----\nabc\nhunter2",
    "'private_key': '-----BEGIN PRIVATE KEY-----\\nhunter2\\n-----END PRIVATE KEY-----\\n'",
    "credential=-----BEGIN SECRET-----\nhunter2\n-----END SECRET-----",
    "authorization=ApiKey hunter2",
    "{authorization => Digest username='a', response=hunter2}",
    "('Authorization', ApiKey hunter2)",
    "password[]=hunter2",
    "password[0]=hunter2",
    "user[password][]=hunter2",
    "user%5Bpassword%5D%5B0%5D=hunter2",
    "headers['Token'][0] = 'a hunter2'",
    "postgres:\\/\\/jobs:hunter2@127.0.0.1\\/jobs",
    '{"url": "http:\\/\\/jobs:8000\\/hunter2@example.com:1\\/"}'.replace("8000", "a8000"),
    "['mysql', '--password', 'hunter2', 'shop']",
    "mysql --password hunter2 shop",
    "curl --db-token\t'a hunter2' http://localhost",
    "-api-key hunter2",
    '{"log": "started: run --secret \\"a hunter2\\""}',
    "tool --authorization Bearer hunter2",
    "git clone https://hunter2@github.com/a/b",
    "git clone https://hunter2:x-oauth-basic@github.com/a/b",
    "https://hunter2:@api.example.com/",
    '{"url": "https:\\/\\/hunter2@example.com\\/"}',
    "password:\n  hunter2\nuser: x",
    "password: |\n  line\n  hunter2\n",
    "a:\n  - password: >-  # folded\r\n\r\n      line\r\n\r\n        hunter2\r\n    user: x\n",
    "config\n\tpassword: |2\n\t\thunter2",
    "log: token: |\n  hunter2",
]
HARMLESS = [
    "ValueError: the order 17 is closed",
    "ValidationError(['Invalid token', 'code'])",
    "https://registry.example.com:4873/@scope/package",
    "http://localhost:8000/?mail=a@example.com and http://localhost:8000/users/@bob",
    "http://localhost:8000",
    "redis does not answer at redis://localhost:6379/0.",
    "http://[::1]:8000/@b",
    "http:\\/\\/localhost:8000\\/@scope and http:\\/\\/localhost:8000\\/",
    "password[0]",
    "tokens[0] is used",
    "ssh://git@example.com:22/x@y",
    '{"broker":"redis://localhost:6379/0","to":"a@example.com"}',
    "expected '-----BEGIN PRIVATE KEY-----' at the start of the file",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "missing 'password='",
    '{"name": "order", "value": 5}',
    '{"name": "password", "in": "header"}',
    "Invalid token",
    "the password is wrong",
    "error: --password is required",
    "Unknown option --token or --tokens, see the documentation",
    "usage: run [-h] [--password PASSWORD] [--user USER]",
    "the following arguments are required: --password, --user",
    "run --password --host localhost",
    "a token - or password - b",
    "well--token x",
    "ssh://git@example.com and postgresql://jobs@localhost/jobs and mail to a@example.com",
    "https://example.com,a@example.com https://example.com?a@b https://example.com#a@b",
    "user: |\n  line\n  password",
    "https://example.com/a:b@c",
    "token",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_a_value_after_a_sensitive_name_is_masked(text):
    masked = redacted_text(text)
    assert SECRET not in masked
    assert MASK in masked
    assert redacted_text(masked) == masked


@pytest.mark.parametrize("text", HARMLESS)
def test_a_text_without_a_secret_is_unchanged(text):
    assert redacted_text(text) == text


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize(
    "value", ['a"hunter2', "a\\", 'a\\"hunter2', "a\\\\", '"', 'hunter2"', "'hunter2", '\\"hunter2\\']
)
def test_values_with_quotes_and_backslashes_in_nested_json(value, depth):
    text = {"password": value, "other": "stays"}
    for _ in range(depth):
        text = json.dumps({"body": text}) if isinstance(text, str) else json.dumps(text)
    assert SECRET not in redacted_text(text)
    assert "stays" in redacted_text(text)
    assert redacted_text(redacted_text(text)) == redacted_text(text)


def test_the_value_of_an_option_in_a_list_is_masked():
    assert redacted(["mysql", "--password", SECRET, "shop"]) == ["mysql", "--password", MASK, "shop"]
    assert redacted(["a password", SECRET, "shop"]) == ["a password", SECRET, "shop"]
    assert redacted(["mysql", "--host", "x"]) == ["mysql", "--host", "x"]
    assert redacted(["mysql", "--password"]) == ["mysql", "--password"]


#: Texts with secrets, and what remains of them.
AROUND = {
    "charge(17, token='hunter2') failed": f"charge(17, token='{MASK}') failed",
    "a=1&token=hunter2&b=2": f"a=1&token={MASK}&b=2",
    "secret: hunter2\nValueError: x": f"secret: {MASK}\nValueError: x",
    "login(password=aa,user=bb)": f"login(password={MASK},user=bb)",
    "mysql --password hunter2 --host x": f"mysql --password {MASK} --host x",
    "--token 'a b' x": f"--token '{MASK}' x",
    "https://hunter2@example.com/a": f"https://{MASK}@example.com/a",
    "a:\n  token: |\n    x\n\n    y\n\n  b: 1\n": f"a:\n  token: {MASK}\n\n  b: 1\n",
    "- token: |\n    x\n  user: y": f"- token: {MASK}\n  user: y",
    "token: |\nuser: y": f"token: {MASK}\nuser: y",
    "  - token: |\n    user: y": f"  - token: {MASK}\n    user: y",
    "password=aa, then": f"password={MASK}, then",
    "ftp://a:hunter2@b/c, ftp://d:hunter2@e": f"ftp://a:{MASK}@b/c, ftp://d:{MASK}@e",
    "nats://a:x@b:4222,nats://c:y@d": f"nats://a:{MASK}@b:4222,nats://c:{MASK}@d",
    '["Authorization", "Bearer hunter2"], 5': f'["Authorization", "{MASK}"], 5',
    "('cvv', 123) x": f"('cvv', {MASK}) x",
}


def test_the_text_around_a_secret_is_kept():
    for text, expected in AROUND.items():
        assert redacted_text(text) == expected
    pair = '{"name": "Authorization", "value": "Bearer hunter2", "a": 1}'
    assert redacted_text(pair) == pair.replace("Bearer hunter2", MASK)
    key = "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"
    assert redacted_text(f"read {key}\nValueError: x") == f"read {MASK}\nValueError: x"


def test_json_texts_in_a_value_are_masked():
    value = {"body": json.dumps({"password": SECRET, "a": json.dumps({"token": SECRET})}), "log": "run --token hunter2"}
    assert SECRET not in str(redacted(value))
    assert redacted(['{"password": "x", "a": 1}']) == [f'{{"password": "{MASK}", "a": 1}}']


def test_values_of_sensitive_keys_are_masked_at_any_depth():
    value = {"a": [{"userPassword": SECRET, "b": {"Token": {"x": SECRET}}, "cvv": 123}], "text": "secret=hunter2"}
    assert redacted(value) == {
        "a": [{"userPassword": MASK, "b": {"Token": MASK}, "cvv": MASK}],
        "text": f"secret={MASK}",
    }


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (["Authorization", SECRET], ["Authorization", MASK]),
        ([["Accept", "x"], ("X-Api-Key", [SECRET])], [["Accept", "x"], ["X-Api-Key", MASK]]),
        ({"name": "Authorization", "value": SECRET}, {"name": "Authorization", "value": MASK}),
        ({"Value": [SECRET], "Key": "db password"}, {"Value": MASK, "Key": "db password"}),
        ({"header": "cookie", "values": SECRET, "a": 1}, {"header": "cookie", "values": MASK, "a": 1}),
    ],
)
def test_the_value_of_a_pair_with_a_sensitive_name_is_masked(value, expected):
    assert redacted(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        ["Invalid token", "code"],
        ["token", "amount", "name"],
        ["token"],
        ["has_password", True],
        [["a", "token"], 5],
        {"name": "order", "value": 5},
        {"name": ["token"], "value": 5},
        {"password_is_set": True, "name": "secret"},
        {"token": None, "has_password": True},
    ],
)
def test_other_lists_and_objects_are_unchanged(value):
    assert redacted(value) == value


def test_the_given_value_is_not_changed():
    value = {"a": {"token": SECRET}}
    redacted(value)
    assert value == {"a": {"token": SECRET}}


def test_deeply_nested_values_are_redacted():
    value = []
    for _ in range(50_000):
        value = [value]
    part = redacted(value)
    for _ in range(50_000):
        part = part[0]
    assert part == []


def test_safe_strings_become_plain_strings():
    assert not isinstance(redacted_text(mark_safe("<b>")), SafeString)
    assert not isinstance(redacted([mark_safe("<b>")])[0], SafeString)


@pytest.mark.parametrize(
    ("names", "value", "expected"),
    [
        ([*SENSITIVE_FIELDS, "tax number"], {"taxNumber": SECRET, "token": "x"}, {"taxNumber": MASK, "token": MASK}),
        (["(a+)+"], {"aaa": 1, "x(a+)+": 1}, {"aaa": 1, "x(a+)+": MASK}),  # a name is not a pattern
        ([], {"password": SECRET, "url": "ftp://a:b@c"}, {"password": SECRET, "url": f"ftp://a:{MASK}@c"}),
    ],
)
def test_a_project_can_change_the_names(names, value, expected):
    with override_settings(JOBCHAINS={"SENSITIVE_FIELDS": names}):
        assert redacted(value) == expected


@pytest.mark.parametrize("wrong", ["password", [""], ["__"], [1], None, {"a": 1}])
def test_invalid_settings_are_refused(wrong):
    with (
        override_settings(JOBCHAINS={"SENSITIVE_FIELDS": wrong}),
        pytest.raises(ImproperlyConfigured, match="SENSITIVE_FIELDS"),
    ):
        get_settings()


#: Repeated parts that could take a backtracking pattern hours.
HOSTILE = [
    "a", "token", "token=", 'token="', "token='", 'token=\\"', "token=[", "token=[\"'", 'token=["\\"',
    'token=["' + '\\"' * 50, 'token=a"', ' token=a\\"', " token=a\\'\\\"", "token=a,", "token=a,b", "token=,b=",
    "token ", "token\\", "token',", "['token',", "['token', 5", "'token', 'value': ", "'token', 'value' : [",
    "'token', 'a': 'value', ", "'value': 'token',", "'value': '\\'", "'value':\"'", "'value': 'a', 'name': 'a",
    "token:\n", "://", "://a:", "://a:b", "://a:b@", "://a:8000/@", "@://a:", "://a:'", "://a:'@", "https", "a,",
    ",a://", "-----BEGIN PRIVATE KEY-----", "-----BEGIN PRIVATE KEY-----a", "-----BEGIN ", "token=-----BEGIN A-----",
    "-----BEGIN PRIVATE KEY----- -----END", "token=bearer ", 'token=\\"\\\\', "token=" + "\\" * 3 + '"', "token[",
    "token[0]", "token%5B%5D", "authorization=a ", "'authorization', a ", ":\\/\\/", ":\\/\\/a:", ":\\", "--token ",
    "--token a ", "--token-", "-token", "token: |\n", "token: |\n ", "token: |\n  a\n\n", "token: |\n\n\n\n\n\n\n\n",
    "token: | # ", "token: |#\n - ", "https://a", "https://a@", "https://a:@",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("part", HOSTILE)
def test_the_time_is_linear_in_the_length(part):
    def seconds(length):
        text = "token" + " " * 100 + part * (length // len(part))
        best = 1e9
        for _ in range(2):
            begin = time.thread_time()
            redacted_text(text)
            best = min(best, time.thread_time() - begin)
        return best

    # CPU time, because other processes use the processor too. Eight times the text takes about eight times as long if
    # the time is linear, and 64 times as long if it is quadratic.
    assert seconds(160_000) < 25 * seconds(20_000) + 0.05
