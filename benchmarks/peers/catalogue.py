"""The systems to compare with, and how each one is run.

This module imports only the standard library: it is used before anything is installed, and in each peer's environment.
"""

import os
import re
from dataclasses import dataclass, field, replace

SLOTS = 10
#: The number of steps of a chain.
STEPS = 5
#: The Redis server and the number of the database. All keys that are written have a prefix.
REDIS = os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:6379/9")


@dataclass(frozen=True)
class Peer:
    """A system to compare with.

    - ``program``: its module in ``benchmarks.peers.programs``, configured by the environment variables ``options``.
    - ``packages``: its packages, the most important one first.
    - ``guarantees``: what happens to a job when a process crashes, and what stays of it, with these settings.
    - ``is_node``: whether it runs on Node.js, with packages of npm. Its program is in ``programs/node``.
    - ``pending``: SQL that counts unacknowledged jobs; empty for a system that stores no jobs in the database.
    - ``jobs``: the number of jobs of a drain.
    - ``gap_seconds``: the random part of the gaps between enqueues in the latency cells. It is as long as a poll
      interval, so that enqueues and polls are not synchronized.
    """

    name: str
    program: str
    packages: tuple[str, ...]
    settings: str
    guarantees: str
    jobs: int
    pending: str = ""
    python: tuple[int, int] = (3, 11)
    is_node: bool = False
    has_bulk: bool = True
    gap_seconds: float = 0.03
    samples: int = 120
    chain_samples: int = 120
    is_only_drained: bool = False
    #: Whether its jobs are tasks of Django's framework.
    has_tasks: bool = False
    #: The only cell in which it is measured; empty for the cells that its other attributes allow.
    subject: str = ""
    options: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> str:
        """The environment's name: the first package without its version. Peers that differ in options share one."""
        return _bare(self.packages[0])

    def takes(self, subject: str) -> bool:
        if subject in OF_TASKS:
            return self.has_tasks
        if self.subject or subject in DRAINED:
            return subject == self.subject
        return subject == "drain" if self.is_only_drained else self.has_bulk or subject != "enqueue-many"

    @property
    def amounts(self) -> str:
        """The amounts of work as text. Slow systems get less work, because a round would otherwise take an hour."""
        if self.subject:
            return f"a drain of {self.jobs:,} jobs"
        latency = f", {self.samples} wake-ups, {self.chain_samples} chains"
        return f"a drain of {self.jobs:,} jobs{'' if self.is_only_drained else latency}"

    @property
    def distributions(self) -> tuple[str, ...]:
        return tuple(_bare(package) for package in self.packages)


def _bare(requirement: str) -> str:
    return re.split(r">=|\[|@", requirement)[0]


#: Cells that drain a peer with a separate configuration.
DRAINED = ("isolated", "isolated-cpu")
#: Cells of tasks of Django's framework, with the cell that measures the same.
OF_TASKS = {"enqueue-task": "enqueue", "drain-tasks": "drain"}
_PSYCOPG = "psycopg[binary,pool]>=3.2"
#: This package of npm is Node.js itself.
_NODE = "node@22"
_DJANGO = "the connection stays open (CONN_MAX_AGE=None)"

_PROCRASTINATE = Peer(
    "procrastinate",
    "procrastinate",
    ("procrastinate>=3.10", _PSYCOPG),
    f"concurrency {SLOTS}, coroutine handlers, enqueued with its synchronous connector; LISTEN, polls every 5 s",
    "the jobs of a crashed worker stay *doing* until a task of the application finds and retries them; finished jobs "
    "stay",
    jobs=3_000,
    pending="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
    chain_samples=20,  # some samples wait for the poll
)
_PGQUEUER = Peer(
    "pgqueuer",
    "pgqueuer",
    ("pgqueuer[asyncpg]>=1.6", "asyncpg>=0.30", "uvloop>=0.21"),
    "batch_size 10 (default), no limit on concurrent jobs (default), coroutine handlers on uvloop; LISTEN",
    "at least once: a job without a heartbeat for 30 s is run again; results are written in batches, by id, without a "
    "check that the worker still holds the job; finished jobs are moved to a log",
    jobs=10_000,
    pending="SELECT count(*) FROM pgqueuer",
)
_PGQUEUER_LIMITED = replace(
    _PGQUEUER,
    name=f"pgqueuer, at most {SLOTS}",
    settings=f"max_concurrent_tasks {SLOTS}, which requires a batch_size of {SLOTS // 2}",
    guarantees="as pgqueuer",
    is_only_drained=True,
    options={"BENCH_PEER_AT_MOST": str(SLOTS)},
)
_DJANGO_TASKS_DB = Peer(
    "django-tasks-db",
    "django_tasks_db",
    ("django-tasks-db>=0.13", "django-tasks>=0.12", "Django>=5.2", _PSYCOPG),
    f"one worker runs one task at a time; polls every 1 s (default), no start-up delay; {_DJANGO}",
    "a task of a crashed worker stays *running*; finished tasks stay until they are pruned",
    jobs=1_500,
    pending="SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status IN ('READY', 'RUNNING')",
    has_bulk=False,
    has_tasks=True,
    gap_seconds=1.0,
    samples=24,
    chain_samples=12,
)
_DJANGO_Q2 = Peer(
    "django-q2",
    "django_q2",
    ("django-q2>=1.11", "Django>=5.2", _PSYCOPG),
    f"database broker, {SLOTS} worker processes, bulk 1, save_limit 250, polls every 0.2 s (defaults); {_DJANGO}",
    "at least once: a task without a saved result is run again after 120 s (`retry`); the last 250 results stay",
    jobs=500,
    pending="SELECT count(*) FROM django_q_ormq",
    has_bulk=False,
    gap_seconds=0.2,
    samples=60,
    chain_samples=15,
)
_DJANGO_OX = Peer(
    "django-ox",
    "django_ox",
    ("django-ox>=1.9", "Django>=6.0", _PSYCOPG),
    f"{SLOTS} threads in one process, quiet (--verbosity 0), polls every 1 s (default); {_DJANGO}",
    "at least once: a task without a renewal of its lease for 300 s is run again; finished tasks stay until they "
    "are pruned",
    jobs=3_000,
    pending="SELECT count(*) FROM django_ox_oxtask WHERE status IN ('READY', 'RUNNING')",
    has_tasks=True,
    python=(3, 12),
    gap_seconds=1.0,
    samples=24,
    chain_samples=12,
)
_CELERY = Peer(
    "celery with Redis",
    "celery_redis",
    ("celery[redis]>=5.5", "redis>=5"),
    f"{SLOTS} threads in one process, no results, Redis as configured; a drain ends with the last handler",
    "at most once (its default): a task is acknowledged before it runs, so it is lost when the worker crashes; no "
    "history",
    jobs=5_000,
    has_bulk=False,
)
_CELERY_PREFORK = replace(
    _CELERY,
    name="celery prefork with Redis",
    settings="4 processes of billiard, no results, Redis as configured; a drain ends with the last handler",
    guarantees="as celery with Redis",
    jobs=3_000,
    subject="isolated",
    options={"BENCH_POOL": "prefork", "BENCH_CONCURRENCY": "4"},
)
_CELERY_BUSY = replace(
    _CELERY_PREFORK,
    name="celery prefork with Redis, 10 ms",
    settings="a process of billiard for each CPU, otherwise as celery prefork with Redis",
    jobs=500,
    subject="isolated-cpu",
    options={"BENCH_POOL": "prefork", "BENCH_CONCURRENCY": str(os.cpu_count()), "BENCH_BURN": "0.01"},
)
_GRAPHILE_WORKER = Peer(
    "graphile-worker",
    "graphile_worker",
    ("graphile-worker@>=0.17", _NODE),
    f"concurrency {SLOTS}, polls every 2 s (default); LISTEN",
    "at least once: a crashed worker's jobs are run again after four hours; a result is a DELETE by id, without a "
    "check that the worker still holds the job",
    jobs=10_000,
    pending="SELECT count(*) FROM graphile_worker.jobs",
    is_node=True,
)
_GRAPHILE_WORKER_QUEUE = replace(
    _GRAPHILE_WORKER,
    name="graphile-worker, local queue",
    settings="as graphile-worker, with `localQueue.size` 500, `completeJobBatchDelay` 0 and `failJobBatchDelay` 0, the "
    "settings of its published figures",
    guarantees="as graphile-worker, but after a crash up to 500 jobs wait for four hours, and jobs that had already "
    "finished run again",
    jobs=60_000,
    is_only_drained=True,
    options={"BENCH_LOCAL_QUEUE": "500"},
)
_PG_BOSS = Peer(
    "pg-boss",
    "pg_boss",
    ("pg-boss@>=12", _NODE),
    f"{SLOTS} workers in one process, which fetch one job and then wait for 2 s (default) or a NOTIFY",
    "at least once: an active job is retried 15 minutes after its fetch, at most twice; the write of a result checks "
    "the number of the retry; finished jobs stay for 7 days",
    jobs=50,
    pending="SELECT count(*) FROM pgboss.job WHERE state < 'completed'",
    is_node=True,
    samples=60,
    chain_samples=15,
)
_PG_BOSS_BATCHES = replace(
    _PG_BOSS,
    name="pg-boss, batches",
    settings="4 workers that fetch and complete 500 jobs at a time (`batchSize`), without a wait while "
    "batches are full (`burstWhenBatchFull`)",
    guarantees="as pg-boss, but a failure fails its whole batch of 500",
    jobs=30_000,
    is_only_drained=True,
    options={"BENCH_BATCH": "500"},
)

PEERS = (
    _PROCRASTINATE,
    _PGQUEUER,
    _PGQUEUER_LIMITED,
    _DJANGO_TASKS_DB,
    _DJANGO_Q2,
    _CELERY,
    _CELERY_PREFORK,
    _CELERY_BUSY,
    _DJANGO_OX,
    _GRAPHILE_WORKER,
    _GRAPHILE_WORKER_QUEUE,
    _PG_BOSS,
    _PG_BOSS_BATCHES,
)
