"""Threads that wait for chains, a record of the watcher's queries, and notifiers that lose hints."""

import threading
import time

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections

from django_jobchains import chains
from django_jobchains.notifications import Listener, Notifier, waiting
from django_jobchains.processors import JobType
from django_jobchains.store.chains import Chains
from tests.support.waiting import stays, until

#: A timeout that a passing test never reaches.
LONG = 60.0

NULL = "django_jobchains.notifications.base.NullNotifier"
IN_PROCESS = "django_jobchains.notifications.in_process.InProcessNotifier"
DROPPING = f"{__name__}.DroppingNotifier"
DISCONNECTED = f"{__name__}.DisconnectedNotifier"
BROKEN = f"{__name__}.BrokenNotifier"

WAIT_CALLS = {
    "wait": chains.wait,
    "await_chain": async_to_sync(chains.await_chain),
    "result": lambda chain_id, timeout: chains.get(chain_id).result(timeout),
    "aresult": lambda chain_id, timeout: async_to_sync(chains.get(chain_id).aresult)(timeout),
}
every_wait_call = pytest.mark.parametrize("wait", WAIT_CALLS.values(), ids=WAIT_CALLS)
sync_and_async = pytest.mark.parametrize(
    "wait", [WAIT_CALLS["wait"], WAIT_CALLS["await_chain"]], ids=["wait", "await_chain"]
)

#: A job type without a handler: tests complete its jobs.
approval = JobType("waiting.approval")

_started = []


class WaitingThread(threading.Thread):
    """A started thread that waits for a chain."""

    def __init__(self, chain_id, timeout=LONG, wait=chains.wait):
        super().__init__(name="waiter", daemon=True)
        self._chain_id, self._timeout, self._wait = chain_id, timeout, wait
        self._output = self._error = None
        _started.append(self)
        self.start()

    def run(self):
        try:
            self._output = self._wait(self._chain_id, self._timeout)
        except BaseException as error:
            self._error = error
        finally:
            connections.close_all()

    def output(self, seconds=30.0):
        """Return what the call returned, or raise what it raised."""
        self.join(seconds)
        chain = chains.Chain.objects.filter(pk=self._chain_id).values("id", "status").first()
        assert not self.is_alive(), f"The waiter was not notified within {seconds} s. Its chain: {chain}"
        if self._error is not None:
            raise self._error
        return self._output


def waited_for(wait=chains.wait):
    """Return a new chain, and a thread that waits for it."""
    chain, before = approval.enqueue(), waiter_count()
    waiter = WaitingThread(chain.id, wait=wait)
    until_waiting(before + 1)
    return chain, waiter


class ChainQueries:
    """The watcher's queries for ends of chains: the time and the chain ids of each."""

    def __init__(self, monkeypatch):
        self.times = []
        self.ids = []
        #: Called once before the next query, and may raise.
        self.before_next = None
        query = Chains.ends

        def ends(store, chain_ids):
            self._record(chain_ids)
            return query(store, chain_ids)

        monkeypatch.setattr(Chains, "ends", ends)

    def __len__(self):
        return len(self.times)

    def _record(self, chain_ids):
        self.ids.append(list(chain_ids))
        self.times.append(time.monotonic())
        before_next, self.before_next = self.before_next, None
        if before_next is not None:
            before_next()

    def until_idle(self):
        """Wait until only a hint can cause another query, and return the number of queries. Needs ``no_poll``."""
        until(lambda: stays(self._is_idle, 0.05))
        return len(self)

    def _is_idle(self):
        watcher = waiting.get_watcher("default")
        is_scheduled = watcher._query_at > time.monotonic() + LONG
        return bool(self.times) and watcher._used_at >= self.times[-1] and is_scheduled


class DisconnectedNotifier(Notifier):
    """Carries hints, but its listeners are never connected."""

    def connect(self, subscribers):
        return _DisconnectedListener()


class _DisconnectedListener(Listener):
    is_alive = False


class DroppingNotifier(Notifier):
    """Reports that it carries hints, and loses all of them."""

    def send(self, hints):
        pass


class BrokenNotifier(DroppingNotifier):
    """A notifier whose listeners cannot be created."""

    def listen(self, on_hint, kinds):
        raise OSError("no route to host")


def finish(chain, output=None):
    chains.complete(chain.id, output)


def waiter_count():
    return sum(map(len, list(waiting.get_watcher("default")._waiters.values())))


def until_waiting(count=1):
    until(lambda: waiter_count() == count, what=lambda: f"{waiter_count()} waiters")


def threads():
    """Return the names of the threads that serve waiters in this process."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("jobchains-waiting", "jobchains-listener"))]


def sessions():
    """Return the number of PostgreSQL's other sessions in this database."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        return cursor.fetchone()[0]


def end_all():
    """Give the waiters of a failed test time to end: the tables are empty by now."""
    remaining = [waiter for waiter in _started if waiter.is_alive()]
    _started.clear()
    for waiter in remaining:
        waiter.join(0.5)
