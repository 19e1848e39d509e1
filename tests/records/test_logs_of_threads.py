"""Execution logs that several threads of a handler write, each on its own connection."""

import pytest
from django.db import connection

from django_jobchains.records.errors import RecordLost
from tests.records.conftest import Waiting
from tests.records.models import Upload
from tests.support.connections import Actor
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)

#: On a server, a call that would wait for ever ends with an error instead, after the deadline of the test.
LOCK_TIMEOUT = "SET lock_timeout = '30s'"


def keys():
    return [entry["key"] for entry in Upload.objects.get().execution_logs]


def adding(run, key):
    def add(store):
        if connection.vendor == "postgresql":
            with connection.cursor() as cursor:
                cursor.execute(LOCK_TIMEOUT)
        return run.add_log(key, "")

    return Actor(add)


@pytest.mark.postgresql
def test_a_thread_that_waits_for_the_row_does_not_keep_the_handler_from_logging(register, start_worker):
    threads = []

    def handle(record, run):
        entry = run.add_log("before", "")
        with run.complete():
            threads.append(adding(run, "thread").start().until_blocked_or_ended())
            run.add_log("handler", "")
            entry.update(out="done")

    register(handle)
    Upload.objects.create()
    start_worker()
    until(lambda: Upload.objects.get().state == "completed", what=keys)
    assert keys() == ["before", "thread", "handler"]
    assert Upload.objects.get().execution_logs[0]["out"] == "done"
    with pytest.raises(RecordLost, match="already completed"):
        threads[0].result()


@pytest.fixture
def run(handling):
    """The run of a handler that is waiting in a worker."""
    held = Waiting()
    handling(held)
    yield held.runs[0]
    held.released.set()
    until(lambda: Upload.objects.get().state == "completed")


class Paused(Actor):
    """Adds an entry, and waits before it writes it until ``go_on()``."""

    def __init__(self, run, key):
        super().__init__(lambda store: run.add_log(key, ""))

    def _execute(self, execute, sql, params, many, context):
        if "execution_logs" in sql:
            self._stop()
        return execute(sql, params, many, context)


def test_an_older_state_of_the_logs_never_replaces_a_newer_one(run):
    first = Paused(run, "first").start().until_stopped()
    second = adding(run, "second").start().until_blocked_or_ended()
    first.go_on()
    first.result()
    second.result()
    assert keys() == ["first", "second"]


@pytest.mark.postgresql
def test_threads_that_waited_for_the_row_store_all_entries(run):
    holder = Actor(lambda store: Upload.objects.update(size=3), holds=True).start().until_stopped()
    threads = [adding(run, f"{number}").start().until_blocked_or_ended() for number in range(5)]
    holder.go_on()
    for thread in threads:
        thread.result()
    assert keys() == ["0", "1", "2", "3", "4"]
    assert Upload.objects.get().size == 3
