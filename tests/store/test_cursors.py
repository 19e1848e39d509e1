"""PostgreSQL: the driver's prepared statements and Django's own cursor do the same."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from django.db.transaction import TransactionManagementError

from django_jobchains.exceptions import DuplicateJobId
from django_jobchains.models import FailedAttempt, Job
from django_jobchains.policies import Backoff
from django_jobchains.store import Store
from tests.store.connections import committing
from tests.store.jobs import (
    claim,
    create,
    expire,
    failed_try,
    finished,
    lease,
    lost,
    new_job,
    next_job,
    running,
    stored,
)

pytestmark = [committing, pytest.mark.postgresql]


def wrapped() -> AbstractContextManager[None]:
    return connection.execute_wrapper(lambda execute, *args: execute(*args))


@pytest.fixture(params=["driver", "django", "pooled"])
def _cursor(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whose cursor the store uses; behind a transaction pooler nothing is prepared either."""
    connection.settings_dict["DISABLE_SERVER_SIDE_CURSORS"] = request.param == "pooled"
    with wrapped() if request.param == "django" else nullcontext():
        yield
    connection.settings_dict["DISABLE_SERVER_SIDE_CURSORS"] = False


by_every_cursor = pytest.mark.usefixtures("_cursor")


@by_every_cursor
def test_a_life_of_a_job_is_the_same(store: Store) -> None:
    ids = create(store, 3, input='{"a": [1, 2.5, "ü"]}')
    jobs = claim(store)
    assert [(job.id, job.input, job.attempt) for job in jobs] == [(id_, '{"a": [1, 2.5, "ü"]}', 1) for id_ in ids]
    assert store.lock(ids[0]) == ("running", 1)
    assert store.renew([lease(job) for job in jobs]) == lost({})
    assert store.hand_back([lease(jobs[0])]) == {jobs[0].key}
    assert store.finish([finished(jobs[1], None, next_job(jobs[1]))]) == {jobs[1].key}
    expire(jobs[2])
    assert store.reap(10, Backoff(), 10) == [(jobs[2].id, jobs[2].type_name, "pending", 1)]
    assert store.next_due({jobs[0].type_name: 60}) <= 0
    [again, _continuation] = claim(store)
    assert store.fail([failed_try(again, error="%s %% {}")]) == {again.key: "failed"}
    assert stored(again).last_error == "%s %% {}"
    assert Job.objects.count() == 4
    assert FailedAttempt.objects.count() == 2


@by_every_cursor
def test_it_goes_on_being_the_same_when_it_is_repeated(store: Store) -> None:
    for _ in range(12):  # PostgreSQL takes a generic plan from the sixth time on
        [job] = running(store)
        assert store.finish([finished(job)]) == {job.key}
    assert claim(store) == []


@by_every_cursor
def test_an_error_is_djangos_and_leaves_the_connection_usable(store: Store) -> None:
    [job_id] = create(store)
    with pytest.raises(DuplicateJobId) as caught:
        store.create([new_job(id=job_id)])
    assert isinstance(caught.value.__cause__, DatabaseError)
    assert len(claim(store)) == 1


@by_every_cursor
def test_a_broken_transaction_says_so(store: Store) -> None:
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(TransactionManagementError):
            create(store)


@by_every_cursor
def test_a_rollback_undoes_what_was_written(store: Store) -> None:
    [job] = running(store)
    with transaction.atomic():
        store.finish([finished(job)])
        transaction.set_rollback(True)
    assert stored(job).status == "running"


@by_every_cursor
def test_a_closed_connection_is_opened_again(store: Store) -> None:
    create(store)
    connection.close()
    assert len(claim(store)) == 1


def test_statements_of_the_driver_do_not_change_djangos_own(store: Store) -> None:
    create(store)
    threshold = connection.connection.prepare_threshold
    claim(store)
    assert connection.connection.prepare_threshold == threshold


@pytest.mark.parametrize("call", ["wrapped", "logged"])
def test_who_watches_djangos_statements_sees_the_stores(store: Store, call: str, settings: Any) -> None:
    seen: list[str] = []

    def watch(execute: Any, sql: str, *args: Any) -> Any:
        seen.append(sql)
        return execute(sql, *args)

    if call == "wrapped":
        with connection.execute_wrapper(watch):
            create(store)
    else:
        settings.DEBUG = True
        connection.queries_log.clear()
        create(store)
        seen += [query["sql"] for query in connection.queries]
    assert any("INSERT" in sql and Job._meta.db_table in sql for sql in seen)
