"""Throughput of workers for four kinds of handler: it returns a value, continues a chain, writes a row in
``complete()``, or is atomic.

Each kind is measured with 1, 10 and 50 slots in one process, and with two processes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks import pgbench
from benchmarks.bare import BATCH, LARGE
from benchmarks.cells import Cell, Figures, Row, Run, Target
from benchmarks.database import add, add_backlog, fill
from benchmarks.project.jobs import STEPS
from benchmarks.workers import SLOTS, bare_drain, drain

LOOP = "psycopg loop"
JOBS = "jobs"
TASK = "benchmarks.project.tasks.value"
THREADS = "psycopg threads"


@dataclass(frozen=True)
class Kind:
    """A kind of handler.

    ``name`` is the name of the cell with 10 slots. ``attempts`` is the number of attempts of the enqueued ``chains``.
    ``floor`` is one of ``bare.DRAINS``, which runs a loop, or as many threads as there are slots.
    """

    name: str
    type_name: str
    what: str
    chains: int
    floor: str
    attempts: int = 1
    unit: str = "job"
    targets: tuple[Target, ...] = ()
    targets_of_two: tuple[Target, ...] = ()
    row: str = ""
    row_of_two: str = ""
    pgbench: Callable[[str, int], Figures] | None = None

    @property
    def total(self) -> int:
        return self.chains * self.attempts


def cells(*, is_quick: bool) -> Iterator[Cell]:
    for kind in _kinds(is_quick):
        yield _cell(kind, "", SLOTS, 1, kind.targets, row=kind.row)
        if kind.name == "drain":
            yield _backlog(kind, is_quick)
            yield _claim_and_finish(kind)
            yield _tasks(kind)
        if kind.name != "effect-create":
            yield _cell(kind, "-1-slot", 1, 1)
            yield _cell(kind, "-50-slots", 50, 1)
            yield _cell(kind, "-2-processes", SLOTS, 2, kind.targets_of_two, row=kind.row_of_two)


def _kinds(is_quick: bool) -> Iterator[Kind]:
    yield Kind(
        "drain",
        "bench.value",
        "jobs that return a value",
        2_000 if is_quick else 20_000,
        "batches",
        targets=(
            Target("jobs/s", at_least=20_000),
            Target("CPU µs/job", at_most=40),
            Target("server CPU µs/job", at_most=35),
            Target("jobs/s", at_least=0.75, of_floor=LOOP),
            Target("jobs/s", at_least=10, of_floor="procrastinate"),
            Target("jobs/s", at_least=20, of_floor="django-tasks-db"),
            Target("jobs/s", at_least=2, of_floor="pgqueuer"),
            Target("jobs/s", at_least=0.5, of_floor="graphile-worker, local queue"),
        ),
        targets_of_two=(Target("jobs/s", at_least=25_000),),
        row="drain, one process: handlers that return a value",
        row_of_two="drain, two processes",
        pgbench=pgbench.drain_in_batches,
    )
    yield Kind(
        "chains",
        "bench.step",
        f"chains of {STEPS} steps that return a value",
        200 if is_quick else 1_000,
        "chains",
        STEPS,
        "step",
        targets=(Target("steps/s", at_least=3_000),),
        row=f"chains of {STEPS} steps, as throughput",
    )
    jobs = 1_000 if is_quick else 4_000
    enough = (Target("jobs/s", at_least=0.8, of_floor=THREADS),)
    for name, what, row in (
        ("insert", "jobs that write one row with a cursor in complete()", "handlers that write one row in complete()"),
        ("create", "jobs that write one row with the ORM in complete()", ""),
        ("atomic", "atomic jobs that write one row with a cursor", ""),
    ):
        through_pgbench = None if name == "create" else pgbench.drain_with_effects
        targets = () if name == "create" else enough
        yield Kind(
            f"effect-{name}", f"bench.{name}", what, jobs, "effects", targets=targets, row=row, pgbench=through_pgbench
        )


def _cell(
    kind: Kind,
    suffix: str,
    slots: int,
    processes: int,
    targets: tuple[Target, ...] = (),
    *,
    row: str = "",
) -> Cell:
    how = f"{_count(processes, 'worker process', 'worker processes')}, {_count(slots, 'slot', 'slots')}"
    runs = _runs(kind, slots, processes)
    prepare = partial(fill, kind.type_name, kind.chains)
    return Cell(
        f"{kind.name}{suffix}",
        f"{kind.chains:,} {kind.what}, {how}",
        {name: after(prepare, run) for name, run in runs.items()},
        targets,
        row=Row(row, f"{kind.unit}s/s", processes=processes) if row else None,
    )


def _runs(kind: Kind, slots: int, processes: int) -> dict[str, Run]:
    has_threads = kind.floor == "effects"
    floor = THREADS if has_threads else LOOP
    runs: dict[str, Run] = {
        "ours": partial(drain, kind.type_name, kind.total, slots=slots, processes=processes, unit=kind.unit),
        floor: partial(
            bare_drain,
            kind.floor,
            kind.type_name,
            kind.total,
            threads=slots if has_threads else 1,
            processes=processes,
            unit=kind.unit,
        ),
    }
    if slots == SLOTS and processes == 1:
        runs |= _other_floors(kind, has_threads)
    return runs


def _other_floors(kind: Kind, has_threads: bool) -> Iterator[tuple[str, Run]]:
    if has_threads:
        floor = f"pipelined-{kind.floor}"
        yield f"{THREADS}, pipelined", partial(bare_drain, floor, kind.type_name, kind.total, threads=SLOTS)
    elif kind.floor == "batches":
        for batch in (BATCH, LARGE):
            floor = f"store loop, batches of {batch}"
            yield floor, partial(bare_drain, f"store-{batch}", kind.type_name, kind.total)
    if kind.pgbench and pgbench.is_here():
        yield "pgbench", partial(kind.pgbench, kind.type_name, kind.total)


def _backlog(kind: Kind, is_quick: bool) -> Cell:
    finished, pending = (100_000, 10_000) if is_quick else (1_000_000, 100_000)
    prepare = partial(add, kind.type_name, kind.chains)
    runs = _runs(kind, SLOTS, 1)
    return Cell(
        "drain-backlog",
        f"the jobs of drain, with {finished:,} finished jobs and {pending:,} pending jobs of 50 other types",
        {name: after(prepare, runs[name]) for name in ("ours", LOOP)},
        prepare=partial(add_backlog, finished, pending),
        row=Row(f"drain with {finished:,} finished and {pending:,} pending jobs of other types"),
    )


def _claim_and_finish(kind: Kind) -> Cell:
    """What the database spends on a job: the store and the floor do nothing else, and in the same batches."""
    prepare = partial(fill, kind.type_name, kind.chains)
    loops = {"ours": f"store-{LARGE}", f"{LOOP}, batches of {LARGE}": f"batches-{LARGE}"}
    server = "server CPU µs/job"
    return Cell(
        "claim-and-finish",
        f"{kind.chains:,} jobs, claimed and finished {LARGE} at a time with the store, in one loop without handlers",
        {name: after(prepare, partial(bare_drain, loop, kind.type_name, kind.chains)) for name, loop in loops.items()},
        (Target(server, at_most=25), Target("WAL bytes/job", at_most=1_300)),
        row=Row(f"claim and finish in batches of {LARGE}, µs of the server's CPU per job", server),
    )


def _tasks(kind: Kind) -> Cell:
    """What Django's framework adds to a job: its result, and the signals before and after it."""
    fill_jobs, fill_tasks = partial(fill, kind.type_name, kind.chains), partial(fill, TASK, kind.chains, is_task=True)
    return Cell(
        "drain-tasks",
        f"{kind.chains:,} tasks of Django's framework that return a value, 1 worker process, {SLOTS} slots",
        {
            "ours": after(fill_tasks, partial(drain, TASK, kind.total, environment={"BENCH_TASKS": "1"})),
            JOBS: after(fill_jobs, partial(drain, kind.type_name, kind.total)),
        },
        (
            Target("jobs/s", at_least=0.85, of_floor=JOBS),
            Target("jobs/s", at_least=20, of_floor="django-tasks-db"),
        ),
        row=Row("drain tasks of Django's framework"),
    )


def after(prepare: Callable[[], object], run: Run) -> Run:
    def prepared() -> Figures:
        prepare()
        return run()

    return prepared


def _count(number: int, one: str, more: str) -> str:
    return f"{number} {one if number == 1 else more}"
