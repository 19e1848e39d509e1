"""Chains and jobs are read page by page, with filters."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from django_jobchains.models import Chain, Job
from tests.support.jobs import MAIL, SHIP, create, failed_try, finished, next_job, running

pytestmark = pytest.mark.django_db

MODELS = pytest.mark.parametrize("model", [Chain, Job])


def ids(rows: Any) -> list[UUID]:
    """Return the ids of all pages with two rows each."""
    found: list[UUID] = []
    cursor = None
    while True:
        page = rows.page(cursor, limit=2)
        found += [row.pk for row in page]
        if (cursor := page.next_cursor) is None:
            return found


@MODELS
def test_pages_have_each_row_once_and_the_newest_chain_first(store, model):
    made = create(store, 5)
    assert ids(model.objects) == made[::-1]
    oldest_first = model.objects.order_by(*model.objects.all().page_orders[1])
    assert ids(oldest_first) == made


def test_a_chain_has_the_status_of_its_last_job_and_the_type_of_its_first(store):
    failed, continued, ended = running(store, 3)
    store.attempts.fail([failed_try(failed)])
    store.attempts.finish([finished(continued, None, next_job(continued)), finished(ended)])
    chains, jobs = Chain.objects, Job.objects
    assert ids(chains.with_status("failed")) == [failed.id]
    assert ids(chains.incomplete()) == [continued.id]
    assert ids(chains.with_status("completed")) == [ended.id]
    assert ids(chains.of_type(SHIP)) == ids(chains.of_chain_type(SHIP))
    assert not ids(chains.of_type(MAIL))
    assert [(job.chain_id, job.chain_index) for job in jobs.of_type(MAIL)] == [(continued.id, 1)]
    assert len(ids(jobs.of_chain_type(SHIP))) == 4


@MODELS
def test_roots_and_dependents_are_found_by_their_blockers(store, model):
    (blocker,) = create(store)
    (waiting,) = create(store, 1, MAIL, blockers=(blocker,))
    rows = model.objects
    assert ids(rows.roots()) == ids(rows.blocked_by(blocker)) == [waiting]


@MODELS
def test_rows_are_found_by_the_time_of_their_creation(store, model):
    made = create(store, 3)
    at = Job.objects.get(pk=made[0]).created_at
    rows, hour = model.objects, timedelta(hours=1)
    assert ids(rows.created_between(at, at + hour)) == made[::-1]
    assert ids(rows.created_between(at - hour, at)) == []
    assert ids(rows.created_between(None, at + hour)) == ids(rows.created_between(at, None)) == made[::-1]
