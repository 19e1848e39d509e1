"""Which systems stand beside ours, and how each is run.

Only the standard library is imported here: it is read before anything is installed, and inside each peer's environment.
"""

import os
from dataclasses import dataclass, field

SLOTS = 10
#: Of a chain.
STEPS = 5
#: The server, and the number of a database on it; what is written there has a prefix.
REDIS = os.environ.get("BENCH_REDIS_URL", "redis://127.0.0.1:6379/9")


@dataclass(frozen=True)
class Peer:
    """``program``: its module in ``benchmarks.peers.programs``, told by ``options`` (environment variables) how to run.

    ``packages``: the first is the one whose version is told. ``pending``: the SQL that counts what is not yet
    acknowledged; none for a system that keeps its jobs elsewhere. ``jobs``: of a drain.
    ``gap_seconds``: how irregular the enqueues of the latency cells are; as long as a poll, or they would be in step.
    """

    name: str
    program: str
    packages: tuple[str, ...]
    settings: str
    jobs: int
    pending: str = ""
    python: tuple[int, int] = (3, 11)
    has_bulk: bool = True
    gap_seconds: float = 0.03
    samples: int = 200
    chain_samples: int = 200
    is_only_drained: bool = False
    options: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> str:
        """The first package's name without its version: peers that differ in their options share one."""
        return _bare(self.packages[0])

    def takes(self, subject: str) -> bool:
        return subject == "drain" if self.is_only_drained else self.has_bulk or subject != "enqueue-many"

    @property
    def amounts(self) -> str:
        """Slow systems do less, or a round would take an hour."""
        latency = f", {self.samples} wake-ups, {self.chain_samples} chains"
        return f"a drain of {self.jobs:,} jobs{'' if self.is_only_drained else latency}"

    @property
    def distributions(self) -> tuple[str, ...]:
        return tuple(_bare(package) for package in self.packages)


def _bare(requirement: str) -> str:
    return requirement.partition(">=")[0].partition("[")[0]


_PSYCOPG = "psycopg[binary,pool]>=3.2"
_PGQUEUER = ("pgqueuer[asyncpg]>=1.6", "asyncpg>=0.30", "uvloop>=0.21")
_DJANGO = "the connection stays open (CONN_MAX_AGE=None)"

PEERS = (
    Peer(
        "procrastinate",
        "procrastinate",
        ("procrastinate>=3.10", _PSYCOPG),
        f"concurrency {SLOTS}, coroutine handlers, enqueued by its synchronous connector; LISTEN, and polls each 5 s",
        jobs=3_000,
        pending="SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
        chain_samples=20,  # some of them wait for the poll
    ),
    Peer(
        "pgqueuer",
        "pgqueuer",
        _PGQUEUER,
        "batch_size 10 (default), no limit on concurrent jobs (default), coroutine handlers on uvloop; LISTEN",
        jobs=10_000,
        pending="SELECT count(*) FROM pgqueuer",
    ),
    Peer(
        f"pgqueuer, at most {SLOTS}",
        "pgqueuer",
        _PGQUEUER,
        f"as pgqueuer, with max_concurrent_tasks {SLOTS}, which wants a batch_size of {SLOTS // 2}",
        jobs=10_000,
        pending="SELECT count(*) FROM pgqueuer",
        is_only_drained=True,
        options={"BENCH_PEER_AT_MOST": str(SLOTS)},
    ),
    Peer(
        "django-tasks-db",
        "django_tasks_db",
        ("django-tasks-db>=0.13", "django-tasks>=0.12", "Django>=5.2", _PSYCOPG),
        f"one worker runs one task at a time; polls each 1 s (default), no start-up delay; {_DJANGO}",
        jobs=1_500,
        pending="SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status IN ('READY', 'RUNNING')",
        has_bulk=False,
        gap_seconds=1.0,
        samples=24,
        chain_samples=12,
    ),
    Peer(
        "django-q2",
        "django_q2",
        ("django-q2>=1.11", "Django>=5.2", _PSYCOPG),
        f"database broker, {SLOTS} worker processes, bulk 1, save_limit 250, polls each 0.2 s (defaults); {_DJANGO}",
        jobs=500,
        pending="SELECT count(*) FROM django_q_ormq",
        has_bulk=False,
        gap_seconds=0.2,
        samples=60,
        chain_samples=15,
    ),
    Peer(
        "celery with Redis",
        "celery_redis",
        ("celery[redis]>=5.5", "redis>=5"),
        f"{SLOTS} threads in one process, no results, Redis as it is set up; a drain ends with the last handler",
        jobs=5_000,
        has_bulk=False,
    ),
    Peer(
        "django-ox",
        "django_ox",
        ("django-ox>=1.9", "Django>=6.0", _PSYCOPG),
        f"{SLOTS} threads in one process, quiet (--verbosity 0), polls each 1 s (default); {_DJANGO}",
        jobs=3_000,
        pending="SELECT count(*) FROM django_ox_oxtask WHERE status IN ('READY', 'RUNNING')",
        python=(3, 12),
        gap_seconds=1.0,
        samples=24,
        chain_samples=12,
    ),
)
