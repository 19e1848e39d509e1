"""Keyset pages contain every row once and in order, whatever is inserted and deleted in the meantime."""

from random import Random
from uuid import uuid4

import pytest
from django.db import connection
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_jobchains import chains
from django_jobchains.db.keyset import Page
from django_jobchains.models import Chain, Job
from django_jobchains.statuses import Status
from tests.support.attempts import committed, on_own_connection
from tests.support.chain_shapes import all_of, mail, pack, pages, rows, statements, steps

pytestmark = pytest.mark.django_db
MODELS = pytest.mark.parametrize("model", [Job, Chain])
#: Both directions of each list, as arguments of ``order_by()``. Without arguments, the newest is first.
ORDERS = {model: [(), *model.objects.all().page_orders] for model in (Job, Chain)}


def listings(model):
    return [model.objects.order_by(*order) if order else model.objects.all() for order in ORDERS[model]]


def is_ascending(listing):
    return bool(listing.query.order_by) and not listing.query.order_by[0].startswith("-")


@MODELS
@pytest.mark.parametrize("limit", [1, 3, 10, 19, 20, 21, 1_000])
def test_pages_have_every_row_once_in_order(model, limit):
    """The ids are random, and in the order of creation."""
    ids = sorted(rows(10) + rows(10, [uuid4() for _ in range(10)]))
    for listing in listings(model):
        found = list(pages(listing, limit))
        assert [len(page) for page in found] == [limit] * (20 // limit) + [20 % limit] * bool(20 % limit)
        assert [item.pk for page in found for item in page] == (ids if is_ascending(listing) else ids[::-1])


@MODELS
def test_a_page_has_fifty_rows_by_default(model):
    page = model.objects.page()
    assert (list(page), page.next_cursor) == ([], None)
    rows(51)
    page = model.objects.page()
    assert isinstance(page, Page)
    assert (len(page), list(page)) == (50, list(page.items))


@MODELS
@pytest.mark.parametrize("limit", [0, -1, 1_001])
def test_a_limit_out_of_bounds_is_an_error(model, limit):
    with pytest.raises(ValueError, match="must be from 1 to 1000"):
        model.objects.page(limit=limit)


@MODELS
@pytest.mark.parametrize("order", [("created_at",), ("?",), ("status", "id"), ("-type_name",)])
def test_an_order_without_an_index_is_an_error(model, order):
    with pytest.raises(ValueError, match="There are no pages in the order"):
        model.objects.order_by(*order).page()


@MODELS
def test_rows_created_at_the_same_time_are_in_order(model):
    ids = [chain.id for chain in chains.enqueue_many([pack.item(number) for number in range(30)])]
    assert Job.objects.values("created_at").distinct().count() == 1
    assert [item.pk for item in all_of(model.objects)] == ids[::-1]


def test_the_steps_of_a_chain_are_adjacent_and_in_order():
    counts = (3, 1, 9, 2)
    chain_ids = [steps(count) for count in counts]
    expected = sorted((number, step) for number, count in enumerate(counts) for step in range(count))
    for listing in listings(Job):
        found = [(chain_ids.index(job.chain_id), job.chain_index) for job in all_of(listing, 3)]
        assert found == (expected if is_ascending(listing) else expected[::-1])
        assert all_of(listing.reverse(), 2) == all_of(listing)[::-1]
    jobs = chains.get(chain_ids[2]).jobs
    assert [job.chain_index for job in all_of(jobs, 4)] == list(range(9))
    assert all_of(jobs.order_by("-chain_index"), 4) == all_of(jobs.reverse(), 2) == all_of(jobs)[::-1]
    assert all_of(jobs.with_status("completed", "failed"), 4) == all_of(jobs)[:-1]


FILTERS = {
    "all": lambda objects: objects.all(),
    "one status": lambda objects: objects.with_status("failed"),
    "two statuses": lambda objects: objects.with_status("failed", "completed"),
    "incomplete": lambda objects: objects.incomplete(),
    "one type": lambda objects: objects.of_type("shop.mail"),
    "one chain type": lambda objects: objects.of_chain_type("shop.mail"),
    "one queue": lambda objects: objects.in_queue("default"),
    "more types than are read one by one": lambda objects: objects.of_type("shop.mail", *map(str, range(30))),
    "two types": lambda objects: objects.of_type("shop.mail", "shop.pack"),
    "types and statuses": lambda objects: objects.of_type("shop.mail", "shop.pack").incomplete(),
    "statuses and types": lambda objects: objects.incomplete().of_type("shop.mail", "shop.pack"),
    "narrowed": lambda objects: objects.incomplete().exclude(deduplication_key="1"),
    "either": lambda objects: objects.with_status("failed", "running") | objects.of_type("shop.mail"),
    "both": lambda objects: objects.with_status("failed", "running") & objects.of_type("shop.mail", "shop.pack"),
}


@pytest.fixture
def mixed():
    """Create sixty chains of one to three steps, with all statuses and three types in random order."""
    random = Random(5)
    ids = []
    for _ in range(60):
        name = random.choice(["shop.pack", "shop.mail", "shop.ship"])
        status = random.choice(Status.values)
        output = {} if status == "completed" else None
        ids.append(steps(random.choice([1, 1, 2, 3]), type_name=name, status=status, output=output))
    for some, name, key in ((ids[::4], "shop.mail", "1"), (ids[1::4], "shop.ship", "2")):
        Job.objects.filter(chain_id__in=some).update(chain_type_name=name, deduplication_key=key)
        Job.objects.filter(chain_id__in=some, chain_index=0).update(type_name=name)


@MODELS
@pytest.mark.parametrize("name", FILTERS)
def test_pages_of_a_filter_equal_the_filtered_list_and_use_neither_count_nor_offset(model, name, mixed):
    for listing in listings(model):
        filtered = FILTERS[name](listing)
        order = listing.query.order_by or ORDERS[model][1]
        assert all_of(filtered, 4) == list(filtered.order_by(*order)) != []
    cursor = filtered.page(limit=1).next_cursor
    for sql in statements(lambda: (filtered.page(limit=5), filtered.page(cursor, 5))):
        assert "COUNT(" not in sql.upper()
        assert "OFFSET" not in sql.upper()
        assert "LIMIT 6" in sql


@MODELS
def test_pages_of_blocked_rows_have_each_once(model):
    blocker, other = mail.enqueue(), mail.enqueue()
    items = [pack.item(number, blockers=[blocker, other][: 1 + number % 2]) for number in range(10)]
    ids = [chain.id for chain in chains.enqueue_many(items)]
    assert [item.pk for item in all_of(model.objects.blocked_by(blocker), 3)] == ids[::-1]
    assert [item.pk for item in all_of(model.objects.blocked_by(other).incomplete(), 2)] == ids[1::2][::-1]


CHANGES = st.lists(st.sampled_from(["insert", "delete", "before", "page"]), min_size=5, max_size=30)


@pytest.mark.slow
@MODELS
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes=CHANGES, limit=st.integers(1, 6), order=st.integers(0, 2), seed=st.integers(0, 999))
def test_rows_that_stay_are_on_one_page_whatever_else_changes(model, changes, limit, order, seed):
    Job.objects.all().delete()
    random = Random(seed)
    there = set(rows(15, [uuid4() for _ in range(15)]))
    stays, listing, seen = set(there), listings(model)[order], []
    cursor, is_first = None, True
    for change in [*changes, *["page"] * 40]:
        if change == "page" and (is_first or cursor):
            page = listing.page(cursor, limit)
            seen += [item.pk for item in page]
            cursor, is_first = page.next_cursor, False
        elif change == "insert":
            there |= set(rows(2, [uuid4(), uuid4()]))
        elif change in ("delete", "before") and there:
            gone = random.choice(sorted(there) if change == "delete" else seen or sorted(there))
            Job.objects.filter(pk=gone).delete()
            there.discard(gone)
            stays.discard(gone)
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen, reverse=not is_ascending(listing))
    assert stays <= set(seen)


@MODELS
def test_a_cursor_remains_valid_when_its_row_is_deleted(model):
    ids = rows(6)
    page = model.objects.page(limit=3)
    Job.objects.filter(pk=page.items[-1].pk).delete()
    assert [item.pk for item in model.objects.page(page.next_cursor, 3)] == ids[2::-1]


@committed
@MODELS
@pytest.mark.parametrize("start", ["pending", "running", "blocked"])
@pytest.mark.parametrize("end", ["pending", "running", "blocked"])
def test_a_job_that_changes_its_status_meanwhile_is_on_the_page_once(model, start, end):
    """A job that is incomplete throughout is there once, however many statements a page takes."""
    ids = rows(6, status=start)

    def move(execute, *arguments):
        result = execute(*arguments)
        on_own_connection(lambda: Job.objects.all().update(status=end))
        return result

    with connection.execute_wrapper(move):
        found = [item.pk for item in model.objects.incomplete().page()]
    assert found == ids[::-1]
