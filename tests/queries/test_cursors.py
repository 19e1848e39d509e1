"""Cursors are opaque, exact and fit for URLs, and are refused for other lists."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from string import ascii_letters, digits
from urllib.parse import parse_qs, quote, urlencode
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_jobchains import chains
from django_jobchains.exceptions import InvalidCursor, JobchainsError
from django_jobchains.models import Chain, Job
from tests.support.chain_shapes import all_of, rows, statements, steps

pytestmark = pytest.mark.django_db


def listings():
    chain = chains.get(Job.objects.get(chain_index=2).chain_id)
    orders = {
        f"{model.__name__} {order}": model.objects.order_by(*order)
        for model in (Job, Chain)
        for order in model.objects.all().page_orders
    }
    return {**orders, "steps": chain.jobs, "steps back": chain.jobs.order_by("-chain_index")}


@pytest.fixture
def cursors():
    """Return a cursor of each list."""
    rows(5), steps(4)
    found = {name: listing.page(limit=2).next_cursor for name, listing in listings().items()}
    assert None not in found.values()
    return found


def test_a_cursor_needs_no_quoting_in_a_url(cursors):
    for cursor in cursors.values():
        assert set(cursor) <= set(ascii_letters + digits + "-_")
        assert quote(cursor, safe="") == cursor
        assert parse_qs(urlencode({"after": cursor})) == {"after": [cursor]}
        assert len(cursor) < 200


def test_a_cursor_from_a_url_finds_its_page(cursors):
    for name, listing in listings().items():
        [after] = parse_qs(urlencode({"after": cursors[name]}))["after"]
        assert list(listing.page(after, 2)) == list(listing)[2:4]


def test_a_cursor_of_another_order_is_refused(cursors):
    for name, listing in listings().items():
        for other, cursor in cursors.items():
            if other != name:
                with pytest.raises(InvalidCursor):
                    listing.page(cursor)


def test_a_cursor_works_with_another_filter_of_the_same_list(cursors):
    """The page starts after the row of the cursor, even if the filter excludes that row."""
    name = next(iter(cursors))
    listing = listings()[name]
    page = listing.incomplete().page(cursors[name])
    assert list(page) == [job for job in list(listing)[2:] if job.status == "pending"]


NO_CURSORS = [
    "",
    " ",
    "=",
    "a",
    "abc",
    "null",
    "0",
    "-1",
    "💥",
    "\x00",
    "é" * 10,
    "' OR 1=1 --",
    "'; DROP TABLE django_jobchains_job; --",
    "id DESC",
    "../../etc/passwd",
    "%00",
    "A" * 100_000,
    urlsafe_b64encode(b"[" * 100_000).decode(),
    urlsafe_b64encode(b'["-id", 1' + b"0" * 10_000 + b"]").decode(),
    urlsafe_b64encode(b"[NaN, Infinity]").decode(),
    urlsafe_b64encode("\ufeff[]".encode()).decode(),
]
#: The content of cursors that are well-formed but wrong.
WRONG_PARTS = [
    None,
    True,
    0,
    {},
    {"-id": str(uuid4())},
    [],
    ["-id"],
    ["-id", None],
    ["-id", "' OR 1=1 --"],
    ["-id", str(uuid4()), str(uuid4())],
    ["-id", [str(uuid4())]],
    ["-id", 5],
    ["-created_at", str(uuid4())],
    [["-id"], str(uuid4())],
    [{}, {}],
    ["-chain_id", "-chain_index", str(uuid4()), -1],
    ["-chain_id", "-chain_index", str(uuid4()), 2**31],
    ["-chain_id", "-chain_index", str(uuid4()), 1.5],
    ["-chain_id", "-chain_index", str(uuid4()), "1"],
    ["-chain_id", "-chain_index", str(uuid4()), None],
    ["-chain_id", "-chain_index", str(uuid4()), 10**400],
    ["-chain_id", "-chain_index", 7, 7],
    ["chain_index", 2**63],
    ["chain_index", "0); DELETE FROM django_jobchains_job; --"],
    ["chain_index", [[[[]]]]],
]


def packed(value):
    return urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


def every_listing():
    yield from (
        Job.objects,
        Chain.objects,
        Job.objects.incomplete(),
        Chain.from_db("default", ("id",), (uuid4(),)).jobs,
    )


def test_an_invalid_cursor_is_refused():
    for cursor in (*NO_CURSORS, *map(packed, WRONG_PARTS)):
        for listing in every_listing():
            with pytest.raises(InvalidCursor):
                listing.page(cursor)


def test_a_truncated_cursor_is_refused(cursors):
    for name, listing in listings().items():
        for length in range(len(cursors[name]) - 1):
            with pytest.raises(InvalidCursor):
                listing.page(cursors[name][:length])


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    cursor=st.one_of(st.text(max_size=40), st.binary(max_size=40).map(lambda data: urlsafe_b64encode(data).decode()))
)
@example(cursor="e30")
def test_random_cursors_are_refused(cursor):
    for listing in every_listing():
        with pytest.raises(InvalidCursor):
            listing.page(cursor)


def test_a_refused_cursor_takes_no_statement():
    def read_page():
        with pytest.raises(InvalidCursor):
            Job.objects.page("nonsense")

    assert statements(read_page) == []


def test_the_error_is_a_jobchains_error_with_a_short_message():
    with pytest.raises(InvalidCursor, match=r"is not a cursor of these pages\. Start again without one") as caught:
        Job.objects.page("x" * 10_000)
    assert isinstance(caught.value, JobchainsError | ValueError)
    assert len(str(caught.value)) < 300


def test_a_cursor_contains_no_payload(cursors):
    for cursor in cursors.values():
        text = urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        assert "shop" not in text


def test_a_forged_cursor_only_selects_a_place_in_the_list():
    ids = rows(4)
    cursor = packed([*Chain.objects.all().page_orders[0], str(uuid4())])
    assert {chain.id for chain in Chain.objects.page(cursor)} <= set(ids)
    assert len(all_of(Chain.objects)) == 4
