"""The measured notifiers, each as settings of the processes that use it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.utils.module_loading import import_string

from benchmarks.cells import NotRun
from benchmarks.servers import Servers

_PACKAGE = "django_jobchains.notifications"

#: The environment variables of a process, see ``benchmarks.project.settings``.
Environment = dict[str, str]


@dataclass(frozen=True)
class Way:
    """A notifier to measure.

    ``backend`` is a path below ``django_jobchains.notifications`` or ``benchmarks``. ``options`` and ``environment``
    take the servers. ``server`` is the kind of its listening sessions, see ``benchmarks.sessions``.
    """

    backend: str
    options: Callable[[Servers], dict[str, Any]] = lambda servers: {}
    environment: Callable[[Servers], Environment] = lambda servers: {}
    server: str = ""

    def environment_for(self, servers: Servers) -> Environment:
        """Return the environment of a process. Raises ``NotRun`` if the driver or the server is missing."""
        path = self.backend if self.backend.startswith("benchmarks.") else f"{_PACKAGE}.{self.backend}"
        try:
            import_string(path)
        except ImportError as error:
            raise NotRun(str(error)) from error
        setting = {"BACKEND": path, "OPTIONS": self.options(servers)}
        return {"BENCH_NOTIFIER": json.dumps(setting), **self.environment(servers)}


POSTGRESQL = Way("postgres.PostgresNotifier", server="postgresql")
#: PostgreSQL's notifier without turns: every hint wakes all idle workers.
COUNTLESS = Way("benchmarks.project.countless.CountlessNotifier")
SQLITE = Way("sqlite.SqliteNotifier")
IN_PROCESS = Way("in_process.InProcessNotifier")
NULL = Way("NullNotifier")

#: The other notifiers; "ours" is PostgreSQL's.
OTHERS = {
    "Redis": Way("redis.RedisNotifier", environment=lambda servers: {"BENCH_REDIS": servers.redis()}, server="redis"),
    "NATS, JetStream": Way(
        "nats.NatsNotifier",
        lambda servers: {"servers": servers.jetstream(), "budgets": True},
        lambda servers: {"BENCH_NATS": servers.jetstream()},
        server="nats",
    ),
    "NATS, core": Way(
        "nats.NatsNotifier",
        lambda servers: {"servers": servers.nats(), "budgets": False},
        lambda servers: {"BENCH_NATS": servers.nats()},
        server="nats",
    ),
}
