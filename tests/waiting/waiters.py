"""Threads that wait for chains, what the thread that serves them looked at, and notifiers that fail them."""

import threading
import time
from collections.abc import Callable, Collection
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections

from django_jobchains import chains, waiting
from django_jobchains.notifications import Hint, Listener, Notifier, Subscribers
from django_jobchains.processors import JobType
from tests.worker.waiting import stays, until

#: No wait of a test that is right comes near it.
LONG = 60.0

NULL = "django_jobchains.notifications.base.NullNotifier"
IN_PROCESS = "django_jobchains.notifications.in_process.InProcessNotifier"
DROPPING = "tests.waiting.waiters.DroppingNotifier"
DEAF = "tests.waiting.waiters.DeafNotifier"

Ask = Callable[[UUID, float | None], Any]

#: The four ways to wait.
ASKS: dict[str, Ask] = {
    "wait": chains.wait,
    "await_chain": async_to_sync(chains.await_chain),
    "result": lambda chain_id, timeout: chains.get(chain_id).result(timeout),
    "aresult": lambda chain_id, timeout: async_to_sync(chains.get(chain_id).aresult)(timeout),
}
each_ask = pytest.mark.parametrize("ask", ASKS.values(), ids=ASKS)
each_function = pytest.mark.parametrize("ask", [ASKS["wait"], ASKS["await_chain"]], ids=["wait", "await_chain"])

#: Jobs of it are completed from outside.
approval: JobType[Any, Any] = JobType("waiting.approval")

_started: "list[Waiting]" = []


class Waiting(threading.Thread):
    """Waits for a chain on a thread of its own, from now on."""

    def __init__(self, chain_id: UUID, timeout: float | None = LONG, ask: Ask = chains.wait) -> None:
        super().__init__(name="waiter", daemon=True)
        self._chain_id, self._timeout, self._ask = chain_id, timeout, ask
        self._output: Any = None
        self._error: BaseException | None = None
        _started.append(self)
        self.start()

    def run(self) -> None:
        try:
            self._output = self._ask(self._chain_id, self._timeout)
        except BaseException as error:
            self._error = error
        finally:
            connections.close_all()

    def _chain(self) -> dict[str, Any] | None:
        return chains.Chain.objects.filter(pk=self._chain_id).values("id", "status").first()

    def output(self, seconds: float = 30.0) -> Any:
        """What it was answered, or its error."""
        self.join(seconds)
        assert not self.is_alive(), f"Nobody told the waiter within {seconds} s. Its chain: {self._chain()}"
        if self._error is not None:
            raise self._error
        return self._output


class Looks:
    """The looks at chains: each one's ids, and when it began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at: list[float] = []
        self.ids: list[list[UUID]] = []
        #: Called once before the next look, and may raise.
        self.before: Callable[[], object] | None = None
        self._look = waiting._look
        monkeypatch.setattr(waiting, "_look", self)

    def __len__(self) -> int:
        return len(self.at)

    def __call__(self, chain_ids: list[UUID], using: str) -> Any:
        self.at.append(time.monotonic())
        self.ids.append(list(chain_ids))
        before, self.before = self.before, None
        if before is not None:
            before()
        return self._look(chain_ids, using)

    def until_settled(self, seconds: float = 0.05) -> int:
        """Their number once the first ones are over, and only a hint is a reason for more. A test that counts those
        after it gives it some time, or a slow machine has more to come."""
        until(lambda: len(self) and self._pauses(seconds))
        return len(self)

    def _pauses(self, seconds: float) -> bool:
        before = len(self)
        return stays(lambda: len(self) == before, seconds)


class DeafNotifier(Notifier):
    """Should carry hints, and is not connected."""

    def connect(self, subscribers: Subscribers) -> Listener:
        return _Deaf()


class _Deaf(Listener):
    @property
    def is_alive(self) -> bool:
        return False


class DroppingNotifier(Notifier):
    """Says that it carries hints, and loses every one of them."""

    def send(self, hints: Collection[Hint]) -> None:
        pass


def finish(chain: chains.Chain, output: Any = None) -> None:
    with chains.complete(chain.id) as current:
        current.finish(output)


def waiter_count() -> int:
    return sum(map(len, list(waiting.get_watch("default")._waiters.values())))


def until_waiting(count: int = 1) -> None:
    until(lambda: waiter_count() == count, what=lambda: f"{waiter_count()} wait")


def threads() -> list[str]:
    """The threads that waiting costs in this process, by name."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith(("jobchains-waiting", "jobchains-listener"))]


def sessions() -> int:
    """PostgreSQL's sessions of this database, without the one that asks."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND backend_type = 'client backend' AND pid <> pg_backend_pid()"
        )
        count: int = cursor.fetchone()[0]
        return count


def end_all() -> None:
    """Frees the waiters that a failed test left: what they wait for is gone."""
    left = [waiter for waiter in _started if waiter.is_alive()]
    _started.clear()
    for waiter in left:
        waiter.join(0.5)
