"""``QueryBudget`` counts the queries of a handler on all its connections, and no others."""

import logging
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.exceptions import RegistryError
from django_jobchains.middleware import QueryBudget
from django_jobchains.processors import JobType, Processors
from tests.middleware.recording import processors_with
from tests.shop.models import Effect
from tests.support.attempts import committed, on_own_connection

pytestmark = committed

Handler = Any


def query(times=1, using="default"):
    for _ in range(times):
        list(Effect.objects.using(using).filter(label="none"))


def run(work, handler, *middleware, **options):
    """Run one attempt of a handler, and return its job."""
    processors = processors_with(*middleware)
    chain = processors.register("queries", **options)(handler).enqueue()
    work(processors, slots=1)
    return chain.refresh().current_job


def in_every_phase(job):
    query(2)
    with job.prepare():
        query(1)
    assert job.blockers == []
    with job.complete():
        query(2)
    query(1)


@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_queries_of_the_handler_are_counted_in_every_phase_and_those_of_the_library_are_not(work, caplog, mode):
    def atomically(job):
        query(3)
        assert job.blockers == []
        with job.complete():
            query(3)

    handler = in_every_phase if mode == "staged" else atomically
    assert run(work, handler, QueryBudget(6), mode=mode).status == "completed"
    assert "its budget" not in caplog.text
    job = run(work, handler, QueryBudget(5), mode=mode)
    assert f"queries {job.id} made 6 queries; its budget is 5." in caplog.text


def test_one_warning_is_logged_and_the_handler_continues(work, caplog):
    job = run(work, lambda job: query(4), QueryBudget(1))
    assert job.status == "completed"
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == [f"queries {job.id} made 4 queries; its budget is 1."]


def test_warning_is_logged_for_a_handler_that_fails(work, caplog):
    def fails(job):
        query(3)
        raise RuntimeError("declined")

    assert run(work, fails, QueryBudget(2)).last_error == "RuntimeError: declined"
    assert "made 3 queries" in caplog.text


def test_first_query_beyond_the_budget_may_fail_the_attempt(work):
    done = []

    def queries(job):
        with job.complete():
            Effect.objects.create(job_id=job.id, label="own")
            for number in range(5):
                query()
                done.append(number)

    job = run(work, queries, QueryBudget(3, action="fail"))
    assert (job.status, done) == ("pending", [0, 1])
    assert "'queries' executes more than 3 queries. Fetch related rows at once" in str(job.last_error)
    assert not Effect.objects.exists()


def test_attempt_fails_even_if_the_handler_swallows_the_error(work):
    def queries(job):
        with suppress(Exception):
            query(3)

    assert str(run(work, queries, QueryBudget(1, action="fail")).last_error).startswith("QueryBudgetExceeded")


def test_exactly_the_budget_is_allowed(work):
    assert run(work, lambda job: query(3), QueryBudget(3, action="fail")).status == "completed"


def test_two_budgets_count_separately(work, caplog):
    job = run(work, lambda job: query(5), QueryBudget(2), QueryBudget(4, action="fail"))
    assert str(job.last_error).startswith("QueryBudgetExceeded")
    assert "made 5 queries; its budget is 2" in caplog.text


def test_each_attempt_has_its_own_budget(work):
    processors = processors_with(QueryBudget(2, action="fail"))
    queries = processors.register("queries")(lambda job: query(2))
    started = [queries.enqueue() for _ in range(4)]
    work(processors, slots=1)
    assert {chain.refresh().status for chain in started} == {"completed"}


def test_queries_of_enqueue_and_cancel_are_not_counted(work, settings):
    settings.JOBCHAINS = {}  # with wake-ups
    other = JobType("other")

    def queries(job):
        query()  # opens the connection
        first = other.enqueue()
        other.enqueue(deduplicate=Deduplicate("k"))
        with transaction.atomic():
            other.enqueue(blockers=[first], deduplicate=Deduplicate("l"))
        chains.enqueue_many([other.item(), other.item()])
        chains.cancel(first)
        with job.complete():
            other.enqueue()

    assert run(work, queries, QueryBudget(1, action="fail")).status == "completed"


@pytest.mark.postgresql
def test_store_keeps_its_prepared_statements(work, monkeypatch):
    unprepared = []

    def fetch(store, sql, params):
        unprepared.append(sql)
        raise AssertionError("The statement is not prepared.")

    monkeypatch.setattr("django_jobchains.store.database.Database.fetch", fetch)
    assert run(work, in_every_phase, QueryBudget(6, action="fail")).status == "completed"
    assert unprepared == []


def test_savepoints_are_not_counted(work):
    def queries(job):
        with transaction.atomic(), transaction.atomic():
            query()
        with job.complete(), transaction.atomic():
            query()

    assert run(work, queries, QueryBudget(2, action="fail")).status == "completed"


def test_all_databases_or_the_given_ones_are_counted(work, second_alias, caplog):
    def queries(job):
        query(2)
        query(3, second_alias)
        connections[second_alias].close()

    run(work, queries, QueryBudget(0))
    assert "made 5 queries" in caplog.text
    run(work, queries, QueryBudget(0, using=second_alias))
    assert "made 3 queries" in caplog.text
    run(work, queries, QueryBudget(0, using=["default"]))
    assert "made 2 queries" in caplog.text


def test_queries_of_the_async_orm_are_counted(work, caplog):
    async def count():
        for _ in range(3):
            await Effect.objects.acount()

    run(work, lambda job: async_to_sync(count)(), QueryBudget(1))
    assert "made 3 queries" in caplog.text


def test_queries_of_a_new_connection_are_counted(work, caplog):
    def queries(job):
        query()
        connection.close()
        del connections["default"]
        query()

    run(work, queries, QueryBudget(1))
    assert "made 2 queries" in caplog.text


def test_queries_outside_of_the_handler_are_not_counted(work, caplog):
    limited, plain = processors_with(QueryBudget(1)), Processors()
    first = limited.register("first")(lambda job: query(1))
    second = plain.register("second")(lambda job: query(5))

    def both(job):
        query()
        on_own_connection(query, 5)

    third = limited.register("third")(both)
    for job_type in (first, second, third, second, first):
        job_type.enqueue()
    query(5)
    work(limited, plain, slots=1)
    assert "its budget" not in caplog.text


def test_execute_wrappers_of_the_handler_are_supported(work, caplog):
    def wrapper(execute, *args):
        return execute(*args)

    def queries(job):
        with connection.execute_wrapper(wrapper):  # opens the thread's connection
            query(2)
        assert wrapper not in connection.execute_wrappers
        query()

    assert run(work, queries, QueryBudget(1)).status == "completed"
    assert "made 3 queries" in caplog.text


@pytest.mark.parametrize("arguments", [(-1,), ("3",), (True,), (1.5,)])
def test_budget_must_be_a_number_of_queries(arguments):
    with pytest.raises(RegistryError, match="a number of queries, 0 or more"):
        QueryBudget(*arguments)


def test_unknown_action_is_refused():
    with pytest.raises(RegistryError, match=r"QueryBudget\(action='raise'\): 'log' or 'fail'"):
        QueryBudget(1, action="raise")
