"""How many queries a handler makes is counted, wherever it makes them, and nothing else is."""

import logging
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.exceptions import RegistryError
from django_jobchains.middleware import Middleware, QueryBudget
from django_jobchains.processors import JobType, Processors, RunningJob
from tests.attempts.conftest import second_alias
from tests.attempts.work import Work, committed, elsewhere
from tests.middleware.recording import slice_with
from tests.shop.models import Effect

__all__ = ("second_alias",)

pytestmark = committed

Handler = Any


def ask(times: int = 1, using: str = "default") -> None:
    for _ in range(times):
        list(Effect.objects.using(using).filter(label="none"))


def run(work: Work, handler: Handler, *middleware: Middleware, **options: Any) -> Any:
    """The job after an attempt of this handler."""
    processors = slice_with(*middleware)
    chain = processors.register("asks", **options)(handler).enqueue()
    work(processors, slots=1)
    return chain.refresh().current_job


def in_every_phase(job: RunningJob[Any]) -> None:
    ask(2)
    with job.prepare():
        ask(1)
    assert job.blockers == []
    with job.complete():
        ask(2)
    ask(1)


@pytest.mark.parametrize("mode", ["staged", "atomic"])
def test_what_the_handler_asks_in_every_phase_counts_and_what_the_library_asks_does_not(
    work: Work, caplog: pytest.LogCaptureFixture, mode: str
) -> None:
    def atomically(job: RunningJob[Any]) -> None:
        ask(3)
        assert job.blockers == []
        with job.complete():
            ask(3)

    handler = in_every_phase if mode == "staged" else atomically
    assert run(work, handler, QueryBudget(6), mode=mode).status == "completed"
    assert "its budget" not in caplog.text
    job = run(work, handler, QueryBudget(5), mode=mode)
    assert f"asks {job.id} made 6 queries; its budget is 5." in caplog.text


def test_it_warns_once_and_lets_the_handler_go_on(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    job = run(work, lambda job: ask(4), QueryBudget(1))
    assert job.status == "completed"
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage() for record in warnings] == [f"asks {job.id} made 4 queries; its budget is 1."]


def test_a_handler_that_fails_is_told_of_too(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    def fails(job: RunningJob[Any]) -> None:
        ask(3)
        raise RuntimeError("declined")

    assert run(work, fails, QueryBudget(2)).last_error == "RuntimeError: declined"
    assert "made 3 queries" in caplog.text


def test_it_may_fail_the_attempt_at_the_first_query_beyond_it(work: Work) -> None:
    asked: list[int] = []

    def asks(job: RunningJob[Any]) -> None:
        with job.complete():
            Effect.objects.create(job_id=job.id, label="own")
            for number in range(5):
                ask()
                asked.append(number)

    job = run(work, asks, QueryBudget(3, action="fail"))
    assert (job.status, asked) == ("pending", [0, 1])
    assert "'asks' makes more than 3 queries: fetch related rows at once" in str(job.last_error)
    assert not Effect.objects.exists()


def test_the_attempt_fails_though_the_handler_swallows_the_error(work: Work) -> None:
    def asks(job: RunningJob[Any]) -> None:
        with suppress(Exception):
            ask(3)

    assert str(run(work, asks, QueryBudget(1, action="fail")).last_error).startswith("QueryBudgetExceeded")


def test_exactly_the_budget_is_allowed(work: Work) -> None:
    assert run(work, lambda job: ask(3), QueryBudget(3, action="fail")).status == "completed"


def test_two_budgets_count_each_for_itself(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    job = run(work, lambda job: ask(5), QueryBudget(2), QueryBudget(4, action="fail"))
    assert str(job.last_error).startswith("QueryBudgetExceeded")
    assert "made 5 queries; its budget is 2" in caplog.text


def test_each_attempt_has_the_whole_budget(work: Work) -> None:
    processors = slice_with(QueryBudget(2, action="fail"))
    asks = processors.register("asks")(lambda job: ask(2))
    started = [asks.enqueue() for _ in range(4)]
    work(processors, slots=1)
    assert {chain.refresh().status for chain in started} == {"completed"}


def test_what_the_library_asks_for_the_handler_does_not_count(work: Work, settings: Any) -> None:
    settings.JOBCHAINS = {}  # with wake-ups
    other: JobType[Any, Any] = JobType("other")

    def asks(job: RunningJob[Any]) -> None:
        ask()  # the connection is open
        first = other.enqueue()
        other.enqueue(deduplicate=Deduplicate("k"))
        with transaction.atomic():
            other.enqueue(blockers=[first], deduplicate=Deduplicate("l"))
        chains.enqueue_many([other.item(), other.item()])
        chains.cancel(first)
        with job.complete():
            other.enqueue()

    assert run(work, asks, QueryBudget(1, action="fail")).status == "completed"


@pytest.mark.postgresql
def test_the_store_keeps_its_prepared_statements(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    unprepared: list[str] = []

    def fetch(store: Any, sql: str, params: Any) -> Any:
        unprepared.append(sql)
        raise AssertionError("not on the driver's cursor")

    monkeypatch.setattr("django_jobchains.store.dialect.Dialect._fetch", fetch)
    assert run(work, in_every_phase, QueryBudget(6, action="fail")).status == "completed"
    assert unprepared == []


def test_savepoints_do_not_count(work: Work) -> None:
    def asks(job: RunningJob[Any]) -> None:
        with transaction.atomic(), transaction.atomic():
            ask()
        with job.complete(), transaction.atomic():
            ask()

    assert run(work, asks, QueryBudget(2, action="fail")).status == "completed"


def test_all_connections_count_or_those_that_are_named(
    work: Work, second_alias: str, caplog: pytest.LogCaptureFixture
) -> None:
    def asks(job: RunningJob[Any]) -> None:
        ask(2)
        ask(3, second_alias)
        connections[second_alias].close()

    run(work, asks, QueryBudget(0))
    assert "made 5 queries" in caplog.text
    run(work, asks, QueryBudget(0, using=second_alias))
    assert "made 3 queries" in caplog.text
    run(work, asks, QueryBudget(0, using=["default"]))
    assert "made 2 queries" in caplog.text


def test_the_async_orm_counts(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    async def look() -> None:
        for _ in range(3):
            await Effect.objects.acount()

    run(work, lambda job: async_to_sync(look)(), QueryBudget(1))
    assert "made 3 queries" in caplog.text


def test_a_connection_that_was_made_anew_counts(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    def asks(job: RunningJob[Any]) -> None:
        ask()
        connection.close()
        del connections["default"]
        ask()

    run(work, asks, QueryBudget(1))
    assert "made 2 queries" in caplog.text


def test_queries_elsewhere_do_not_count(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    watched, plain = slice_with(QueryBudget(1)), Processors()
    first = watched.register("first")(lambda job: ask(1))
    second = plain.register("second")(lambda job: ask(5))

    def both(job: RunningJob[Any]) -> None:
        ask()
        elsewhere(ask, 5)

    third = watched.register("third")(both)
    for job_type in (first, second, third, second, first):
        job_type.enqueue()
    ask(5)
    work(watched, plain, slots=1)
    assert "its budget" not in caplog.text


def test_a_wrapper_of_ones_own_is_the_one_that_is_removed(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    def wrapper(execute: Any, *args: Any) -> Any:
        return execute(*args)

    def asks(job: RunningJob[Any]) -> None:
        with connection.execute_wrapper(wrapper):  # the thread's connection is opened inside
            ask(2)
        assert wrapper not in connection.execute_wrappers
        ask()

    assert run(work, asks, QueryBudget(1)).status == "completed"
    assert "made 3 queries" in caplog.text


@pytest.mark.parametrize("arguments", [(-1,), ("3",), (True,), (1.5,)])
def test_what_is_no_number_of_queries_is_refused(arguments: tuple[Any]) -> None:
    with pytest.raises(RegistryError, match="a number of queries, 0 or more"):
        QueryBudget(*arguments)


def test_an_unknown_action_is_refused() -> None:
    with pytest.raises(RegistryError, match=r"QueryBudget\(action='raise'\): 'log' or 'fail'"):
        QueryBudget(1, action="raise")  # type: ignore[arg-type]
