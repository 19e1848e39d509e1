"""Cursors are opaque, exact and fit for URLs, and are refused for other lists."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from string import ascii_letters, digits
from uuid import uuid4

import pytest

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


def test_a_cursor_finds_its_page_needs_no_quoting_in_a_url_and_contains_no_payload(cursors):
    for name, listing in listings().items():
        assert list(listing.page(cursors[name], 2)) == list(listing)[2:4]
        assert set(cursors[name]) <= set(ascii_letters + digits + "-_")
        assert len(cursors[name]) < 200
        assert b"shop" not in urlsafe_b64decode(cursors[name] + "==")


def test_a_cursor_of_another_order_or_a_part_of_one_is_refused(cursors):
    for name, listing in listings().items():
        others = [cursor for other, cursor in cursors.items() if other != name]
        for cursor in others + [cursors[name][:length] for length in range(len(cursors[name]) - 1)]:
            with pytest.raises(InvalidCursor):
                listing.page(cursor)


def test_a_cursor_works_with_another_filter_of_the_same_list(cursors):
    """The page starts after the row of the cursor, even if the filter excludes that row."""
    name = next(iter(cursors))
    listing = listings()[name]
    page = listing.incomplete().page(cursors[name])
    assert list(page) == [job for job in list(listing)[2:] if job.status == "pending"]


def packed(content):
    return urlsafe_b64encode(content.encode()).decode().rstrip("=")


ID = str(uuid4())
TEXTS = ("", " ", "=", "a", "null", "0", "💥", "\x00", "' OR 1=1 --", "id DESC", "%00", "A" * 100_000)
CONTENTS = ("[" * 100_000, '["-id", 1' + "0" * 10_000 + "]", "[NaN, Infinity]", "\ufeff[]")
#: The content of cursors that are well-formed but wrong.
VALUES = [
    *(None, True, 0, {}, {"-id": ID}, [], ["-id"], ["-id", None], ["-id", "' OR 1=1 --"], ["-id", ID, ID]),
    *(["-id", [ID]], ["-id", 5], ["-created_at", ID], [["-id"], ID], [{}, {}], ["-chain_id", "-chain_index", 7, 7]),
    *(["-chain_id", "-chain_index", ID, index] for index in (-1, 2**31, 1.5, "1", None, 10**400)),
    *(["chain_index", index] for index in (2**63, "0); DELETE FROM django_jobchains_job; --", [[[[]]]])),
]


def test_an_invalid_cursor_is_refused_without_a_statement():
    listings = (
        Job.objects,
        Chain.objects,
        Job.objects.incomplete(),
        Chain.from_db("default", ("id",), (uuid4(),)).jobs,
    )

    def read_pages():
        for cursor in (*TEXTS, *map(packed, (*CONTENTS, *map(json.dumps, VALUES)))):
            for listing in listings:
                with pytest.raises(InvalidCursor):
                    listing.page(cursor)

    assert statements(read_pages) == []


def test_the_error_is_a_jobchains_error_with_a_short_message():
    with pytest.raises(InvalidCursor, match=r"is not a cursor of these pages\. Start again without one") as caught:
        Job.objects.page("x" * 10_000)
    assert isinstance(caught.value, JobchainsError | ValueError)
    assert len(str(caught.value)) < 300


def test_a_forged_cursor_only_selects_a_place_in_the_list():
    ids = rows(4)
    cursor = packed(json.dumps([*Chain.objects.all().page_orders[0], str(uuid4())]))
    assert {chain.id for chain in Chain.objects.page(cursor)} <= set(ids)
    assert len(all_of(Chain.objects)) == 4
