"""The cost of sending wake-ups: for many concurrent enqueuers, and for a worker whose handlers write."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from benchmarks.cells import Cell, Figures, Run, Target
from benchmarks.crowd import waiting
from benchmarks.database import empty, fill, settle
from benchmarks.notifiers import NULL, OTHERS, POSTGRESQL, Environment, Way
from benchmarks.servers import Servers
from benchmarks.workers import call_command, drain, figures, together

WRITERS = 16
LISTENERS = (1, 20)
WITHOUT = "NullNotifier"
#: An explicit transaction without wake-ups, and one with NOTIFY in it, which a queue should not do.
ATOMIC = "NullNotifier, atomic()"
INSIDE = "NOTIFY in the transaction"


def cells(*, is_quick: bool) -> Iterator[Cell]:
    jobs = 30 if is_quick else 500
    for number in LISTENERS:
        yield _writers(f"notify-cost-{number}", jobs, number, threads=1)
    yield _writers("notify-cost-threads", jobs, LISTENERS[0], threads=4, is_extra=True)
    yield _effect(500 if is_quick else 4_000)


def _writers(name: str, jobs: int, listeners: int, *, threads: int, is_extra: bool = False) -> Cell:
    servers = Servers()
    run = partial(_enqueue, servers, jobs=jobs, listeners=listeners, threads=threads)
    how = f"{WRITERS} processes" if threads == 1 else f"{WRITERS // threads} processes of {threads} threads"
    return Cell(
        name,
        f"{WRITERS * jobs:,} jobs, each in its own transaction, by {how} at once; listening sessions: {listeners}",
        {"ours": partial(run, POSTGRESQL), WITHOUT: partial(run, NULL)},
        (Target("jobs/s", at_least=0.8, of_floor=WITHOUT),),
        ways={
            **{way: partial(run, each) for way, each in OTHERS.items()},
            ATOMIC: partial(run, NULL, kind="atomic"),
            INSIDE: partial(run, NULL, kind="notify-inside", listeners_use=POSTGRESQL),
        },
        is_extra=is_extra,
        within=lambda: servers,
    )


def _enqueue(
    servers: Servers,
    way: Way,
    *,
    jobs: int,
    listeners: int,
    threads: int,
    kind: str = "enqueue",
    listeners_use: Way | None = None,
) -> Figures:
    """Measure the writers. ``listeners_use``: the listeners' notifier, if it differs from the writers'."""
    environment = way.environment_for(servers)
    empty()
    settle()
    command = call_command("writing.write", kind=kind, threads=threads, jobs=jobs)
    with _listening(listeners_use or way, listeners, (listeners_use or way).environment_for(servers)):
        return figures(together([command] * (WRITERS // threads), **environment), WRITERS * jobs)


def _listening(way: Way, number: int, environment: Environment) -> AbstractContextManager[None]:
    if not number or not way.server:
        return nullcontext()
    return waiting(call_command("sessions.listen", server=way.server, number=number), 1, environment)


def _effect(jobs: int) -> Cell:
    servers = Servers()
    run = partial(_drain, servers, jobs)
    waited: dict[str, Run] = {"ours, with a process that waits for chains": partial(run, POSTGRESQL, listeners=1)}
    return Cell(
        "notify-effect",
        f"{jobs:,} jobs that write one row in complete(), so that as many chains end; one worker process",
        {"ours": partial(run, POSTGRESQL), WITHOUT: partial(run, NULL)},
        (Target("jobs/s", at_least=0.9, of_floor=WITHOUT),),
        ways={**waited, **{way: partial(run, each) for way, each in OTHERS.items()}},
        within=lambda: servers,
    )


def _drain(servers: Servers, jobs: int, way: Way, listeners: int = 0) -> Figures:
    environment = way.environment_for(servers)
    fill("bench.insert", jobs)
    with _listening(way, listeners, environment):
        return drain("bench.insert", jobs, environment=environment)
