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
from tests.support.attempts import committed, on_own_connection
from tests.support.chain_shapes import all_of, mail, pack, pages, row, rows, statements, steps

pytestmark = pytest.mark.django_db
MODELS = pytest.mark.parametrize("model", [Job, Chain])

#: Both directions of each list, as arguments of ``order_by()``. Without arguments, the newest is first.
ORDERS = {model: [(), *model.objects.all().page_orders] for model in (Job, Chain)}


def listings(model):
    return [model.objects.order_by(*order) if order else model.objects.all() for order in ORDERS[model]]


@MODELS
@pytest.mark.parametrize("limit", [1, 2, 3, 7, 19, 20, 21, 1_000])
def test_pages_have_every_row_once_in_order(model, limit):
    ids = rows(20)
    for listing in listings(model):
        found = list(pages(listing, limit))
        assert [len(page) for page in found] == sizes(20, limit)
        joined = [item.pk for page in found for item in page]
        assert joined == (ids if is_ascending(listing) else ids[::-1])


def sizes(count, limit):
    return [limit] * (count // limit) + ([count % limit] if count % limit else [])


def is_ascending(listing):
    return bool(listing.query.order_by) and not listing.query.order_by[0].startswith("-")


@MODELS
def test_a_page_starts_with_the_newest(model):
    ids = rows(5)
    page = model.objects.page(limit=2)
    assert isinstance(page, Page)
    assert [item.pk for item in page] == [ids[4], ids[3]]
    assert (len(page), list(page)) == (2, list(page.items))


@MODELS
def test_the_last_page_has_no_cursor_even_if_it_is_full(model):
    rows(4)
    first = model.objects.page(limit=2)
    second = model.objects.page(first.next_cursor, limit=2)
    assert (len(second), second.next_cursor) == (2, None)
    assert model.objects.page(limit=4).next_cursor is None


@MODELS
def test_an_empty_list_has_one_empty_page(model):
    page = model.objects.page()
    assert (list(page), page.next_cursor) == ([], None)


@MODELS
def test_a_page_has_fifty_rows_by_default(model):
    rows(51)
    assert len(model.objects.page()) == 50


@MODELS
@pytest.mark.parametrize("limit", [0, -1, 1_001, 10**9])
def test_a_limit_out_of_bounds_is_an_error(model, limit):
    with pytest.raises(ValueError, match="must be from 1 to 1000"):
        model.objects.page(limit=limit)


@MODELS
@pytest.mark.parametrize("order", [("created_at",), ("-created_at",), ("?",), ("status", "id"), ("-type_name",)])
def test_an_order_without_an_index_is_an_error(model, order):
    with pytest.raises(ValueError, match="There are no pages in the order"):
        model.objects.order_by(*order).page()


@MODELS
def test_rows_created_at_the_same_time_are_in_order(model):
    """One statement creates them all in the same microsecond."""
    ids = [chain.id for chain in chains.enqueue_many([pack.item(number) for number in range(30)])]
    assert Job.objects.values("created_at").distinct().count() == 1
    assert [item.pk for item in all_of(model.objects)] == ids[::-1]


@MODELS
def test_random_ids_are_paged_in_their_order(model):
    ids = rows(40, [uuid4() for _ in range(40)])
    for listing in listings(model):
        found = [item.pk for item in all_of(listing, 3)]
        assert found == sorted(ids, reverse=not is_ascending(listing))


def test_the_steps_of_a_chain_are_adjacent_in_the_list_of_jobs():
    chain_ids = [steps(count) for count in (3, 1, 4, 2)]
    for listing in listings(Job):
        found = [(chain_ids.index(job.chain_id), job.chain_index) for job in all_of(listing, 3)]
        expected = sorted((number, step) for number, count in enumerate((3, 1, 4, 2)) for step in range(count))
        assert found == (expected if is_ascending(listing) else expected[::-1])


FILTERS = {
    "all": lambda objects: objects.all(),
    "one status": lambda objects: objects.with_status("failed"),
    "two statuses": lambda objects: objects.with_status("failed", "completed"),
    "incomplete": lambda objects: objects.incomplete(),
    "two types": lambda objects: objects.of_type("shop.mail", "shop.pack"),
    "types and statuses": lambda objects: objects.of_type("shop.mail", "shop.pack").incomplete(),
    "statuses and types": lambda objects: objects.incomplete().of_type("shop.mail", "shop.pack"),
    "narrowed": lambda objects: (
        objects.incomplete().filter(priority__gte=1)
        if objects.model is Job
        else objects.incomplete().exclude(deduplication_key="1")
    ),
}


@pytest.fixture
def mixed():
    """Create sixty chains of one to three steps, with four statuses and three types in random order."""
    random = Random(5)
    ids = []
    for number in range(60):
        name = random.choice(["shop.pack", "shop.mail", "shop.ship"])
        status = random.choice(["pending", "running", "failed", "completed"])
        last = {"type_name": name, "status": status, "priority": number % 3}
        last["output"] = {} if status == "completed" else None
        ids.append(steps(random.choice([1, 1, 2, 3]), **last))
    Job.objects.filter(chain_id__in=ids[::4]).update(chain_type_name="shop.mail", deduplication_key="1")
    Job.objects.filter(chain_id__in=ids[::4], chain_index=0).update(type_name="shop.mail")
    Job.objects.filter(chain_id__in=ids[1::4], chain_index=0).update(type_name="shop.ship")
    Job.objects.filter(chain_id__in=ids[1::4]).update(chain_type_name="shop.ship")
    return ids


@pytest.mark.slow
@MODELS
@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize("limit", [1, 4, 100])
def test_pages_of_a_filter_equal_the_filtered_list(model, name, limit, mixed):
    for listing in listings(model):
        filtered = FILTERS[name](listing)
        order = listing.query.order_by or ORDERS[model][1]
        assert all_of(filtered, limit) == list(filtered.order_by(*order))
        assert filtered.exists()


@MODELS
def test_combined_queries_can_be_paged(model):
    failed, mails = rows(3, status="failed"), rows(3, type_name="shop.mail", chain_type_name="shop.mail")
    either = model.objects.with_status("failed", "cancelled") | model.objects.of_type("shop.mail")
    assert [item.pk for item in all_of(either, 2)] == [*reversed(mails), *reversed(failed)]
    both = model.objects.with_status("failed", "cancelled") & model.objects.of_type("shop.pack")
    assert [item.pk for item in all_of(both, 2)] == failed[::-1]


@MODELS
def test_pages_of_blocked_rows_have_each_once(model):
    blocker, other = mail.enqueue(), mail.enqueue()
    items = [pack.item(number, blockers=[blocker, other][: 1 + number % 2]) for number in range(10)]
    ids = [chain.id for chain in chains.enqueue_many(items)]
    assert [item.pk for item in all_of(model.objects.blocked_by(blocker), 3)] == ids[::-1]
    assert [item.pk for item in all_of(model.objects.blocked_by(other).incomplete(), 2)] == ids[1::2][::-1]


def test_a_reversed_list_is_paged_in_reverse():
    chain = chains.get(steps(9))
    for listing, there in [(chain.jobs, list(chain.jobs)), (Job.objects.all(), list(Job.objects.order_by("-id")))]:
        assert all_of(listing.reverse(), 2) == there[::-1]


def test_the_jobs_of_a_chain_are_paged_in_the_order_of_its_steps():
    ids = [uuid4() for _ in range(25)]
    Job.objects.bulk_create(row(id_, ids[0], step, status="completed") for step, id_ in enumerate(ids))
    rows(5), steps(5)
    chain = Chain.from_db("default", ("id",), (ids[0],))
    assert [job.id for job in all_of(chain.jobs, 4)] == ids
    assert [job.id for job in all_of(chain.jobs.order_by("-chain_index"), 4)] == ids[::-1]
    assert [job.id for job in all_of(chain.jobs.with_status("completed", "failed"), 4)] == ids


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
def test_a_job_that_changes_its_status_meanwhile_is_on_the_page_once(model):
    """A job that is incomplete throughout is there once, however many statements a page takes."""
    ids = rows(6)
    moves = [("pending", "running"), ("running", "pending"), ("pending", "blocked"), ("blocked", "pending")]
    for start, end in moves:
        Job.objects.all().update(status=start)

        def move(execute, *arguments, end=end):
            result = execute(*arguments)
            on_own_connection(lambda: Job.objects.all().update(status=end))
            return result

        with connection.execute_wrapper(move):
            found = [item.pk for item in model.objects.incomplete().page()]
        assert found == ids[::-1], (start, end)


@MODELS
@pytest.mark.parametrize("name", FILTERS)
def test_pages_use_neither_count_nor_offset(model, name, mixed):
    filtered = FILTERS[name](model.objects)
    cursor = filtered.page(limit=1).next_cursor
    found = statements(lambda: (filtered.page(limit=5), filtered.page(cursor, 5)))
    assert found
    for sql in found:
        assert "COUNT(" not in sql.upper()
        assert "OFFSET" not in sql.upper()
        assert "LIMIT 6" in sql
