"""A process that does what web processes do: in each request, one transaction with a business row and a chain.

    python -m tests.fleet.web JOURNAL REQUESTS THREADS PAUSE

It appends a line to the journal after each response of the database to a COMMIT, and ends when the journal has this
many lines, or after SIGTERM. A request that gets an error is not tried again, so what it wrote may be there or not.
"""

import json
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import django
from django.db import DatabaseError, InterfaceError, connection, transaction

if __name__ == "__main__":
    django.setup()

from django_jobchains import Deduplicate, chains, records
from tests.records.models import Upload
from tests.shop.models import Effect
from tests.support.worker_app import jobs

#: Web processes need what workers set themselves: otherwise a statement whose response is lost waits for two hours.
DEAD_NETWORK = {"keepalives_idle": 3, "keepalives_interval": 1, "keepalives_count": 3, "tcp_user_timeout": 5_000}
#: How many requests, of all processes, use one key. All of them get the same chain.
SHARED_BY = 10
#: The number of chains that a fan-in waits for.
PARTS = 3


def order(kind: str, id: UUID) -> UUID:
    Effect.objects.create(job_id=id, label=f"ordered {kind}")
    return id


def write(number: int) -> UUID:
    return order("write", jobs.write.enqueue(0.01).id)


def async_write(number: int) -> UUID:
    return order("async_write", jobs.async_write.enqueue(0.01).id)


def attempt(number: int) -> UUID:
    return order("attempt", jobs.attempt.enqueue(0.01).id)


def steps(number: int) -> UUID:
    return order("steps", jobs.first.enqueue(2).id)


def fan_in(number: int) -> UUID:
    parts = chains.enqueue_many([jobs.write.item(0.01) for _ in range(PARTS)])
    for part in parts:
        order("part", part.id)
    return order("fan_in", jobs.gather.enqueue(blockers=parts).id)


def once(number: int) -> UUID:
    """Use the same key as other requests, at about the same time. Only the first one has an order."""
    chain = jobs.write.enqueue(0.01, deduplicate=Deduplicate(key_of(number), scope="any"))
    return chain.id if chain.deduplicated else order("once", chain.id)


def cancelled(number: int) -> UUID:
    return order("cancelled", jobs.write.enqueue(0.01, delay=3600).id)


def record(number: int) -> UUID:
    upload = Upload.objects.create(size=5)
    records.notify(Upload)
    return order("record", UUID(int=upload.pk))


def key_of(number: int) -> str:
    return f"key {number // (SHARED_BY * len(KINDS))}"


KINDS = (write, steps, once, attempt, fan_in, write, async_write, once, cancelled, record)


@dataclass
class Web:
    journal: IO[str]
    requests: float
    pause: float
    _numbers: Any = field(default_factory=count)
    _acknowledged: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def serve(self) -> None:
        """Handle requests, over one connection until it fails."""
        while self._acknowledged < self.requests:
            number = next(self._numbers)
            kind = KINDS[number % len(KINDS)]
            try:
                with transaction.atomic():
                    ordered = kind(number)
                if kind is cancelled:
                    chains.cancel(ordered)
            except (DatabaseError, InterfaceError) as error:
                print(f"failed at {time.time():.3f}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                connection.close()
                time.sleep(0.1)
            else:
                self.acknowledge(kind.__name__, ordered, key_of(number) if kind is once else None)
            time.sleep(self.pause)
        connection.close()

    def stop(self) -> None:
        self.requests = 0

    def acknowledge(self, kind: str, id: UUID, key: str | None) -> None:
        line = json.dumps({"kind": kind, "id": str(id), "key": key, "at": time.time()})
        with self._lock:
            self._acknowledged += 1
            self.journal.write(line + "\n")
            self.journal.flush()


def main(path: str, requests: str, threads: str, pause: str) -> None:
    with Path(path).open("a") as journal:
        web = Web(journal, float(requests), float(pause))
        signal.signal(signal.SIGTERM, lambda *_: web.stop())
        serving = [threading.Thread(target=web.serve) for _ in range(int(threads))]
        for thread in serving:
            thread.start()
        for thread in serving:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
