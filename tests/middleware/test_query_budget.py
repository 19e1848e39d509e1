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
from tests.support.scenario import complete, effect, effects, kinds, outside, prepare

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


def in_every_phase(jobs):
    yield outside(lambda: query(2))
    yield prepare(query)
    yield complete(lambda: query(2))
    yield outside(query)


def assert_budget(scenario, caplog, handler, queries, **options):
    """Check that a handler makes this number of queries. A batch makes one for all its jobs."""
    for budget in (queries, queries - 1):
        used = scenario.with_middleware(QueryBudget(budget))
        [first, *_] = used.enqueue(handler, **options)
        used.run(async_slots=1)
        assert used.states() == {"completed"}
        name = "scenario" if scenario.kind == "batch" else f"scenario {first.id}"
        warning = f"{name} made {queries} queries; its budget is {budget}."
        assert (warning in caplog.text) == (budget < queries), caplog.text


def test_queries_are_counted_in_every_phase_and_those_of_the_library_are_not(scenario, caplog):
    assert_budget(scenario, caplog, in_every_phase, 6)


@kinds("plain", "batch")
def test_queries_of_atomic_handlers_are_counted(scenario, caplog):
    def atomically(jobs):
        yield outside(lambda: query(3))
        assert [list(job.blockers) for job in jobs] == [[]] * len(jobs)
        yield complete(lambda: query(3))

    assert_budget(scenario, caplog, atomically, 6, mode="atomic")


@pytest.mark.parametrize("is_warm", [False, True])
def test_queries_of_async_handlers_are_counted_once_on_all_threads(work, caplog, is_warm):
    """The connections may have been opened before, by handlers without a budget."""
    plain, limited = processors_with(), processors_with(QueryBudget(0))
    other = JobType("other")

    async def queries(job):
        await Effect.objects.acount()
        await job.aprepare(lambda: query(2))
        assert list(await job.ablockers()) == []
        await other.aenqueue()
        await job.acomplete(lambda: query(4))
        await Effect.objects.acount()

    first, second = plain.register("plain")(queries), limited.register("limited")(queries)
    if is_warm:
        first.enqueue(priority=9)
    chain = second.enqueue()
    work(plain, limited, async_slots=1)
    assert chain.refresh().status == "completed"
    assert f"limited {chain.id} made 8 queries; its budget is 0." in caplog.text


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


def test_first_query_beyond_the_budget_may_fail_the_attempt(scenario):
    done = []
    used = scenario.with_middleware(QueryBudget(3, action="fail"))

    def function(jobs):
        effect(jobs[0], "own")
        for number in range(5):
            query()
            done.append(number)

    used.enqueue(lambda jobs: (yield complete(lambda: function(jobs))))
    used.run()
    [error] = used.errors()
    assert (used.states(), done, effects()) == ({"retried"}, [0, 1], [])
    assert "'scenario' executes more than 3 queries. Fetch related rows at once" in error


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
@kinds("plain")
def test_store_keeps_its_prepared_statements(scenario, monkeypatch):
    unprepared = []

    def fetch(store, sql, params):
        unprepared.append(sql)
        raise AssertionError("The statement is not prepared.")

    monkeypatch.setattr("django_jobchains.store.database.Database.fetch", fetch)
    used = scenario.with_middleware(QueryBudget(6, action="fail"))
    used.enqueue(in_every_phase)
    used.run()
    assert (used.states(), unprepared) == ({"completed"}, [])


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
    with pytest.raises(RegistryError, match="pass a number of queries, 0 or more"):
        QueryBudget(*arguments)


def test_unknown_action_is_refused():
    with pytest.raises(RegistryError, match=r"QueryBudget\(action='raise'\): 'log' or 'fail'"):
        QueryBudget(1, action="raise")
