"""The notifiers that are measured side by side, each as settings of the processes that use it."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.utils.module_loading import import_string

from benchmarks.cells import NotRun
from benchmarks.servers import Servers

_PACKAGE = "django_jobchains.notifications"

#: What a process is told by its environment, see ``benchmarks.project.settings``.
Environment = dict[str, str]


@dataclass(frozen=True)
class Way:
    """``backend``: below ``django_jobchains.notifications``, or below ``benchmarks``. ``options``, ``environment``:
    with what servers give. ``server``: the kind of its listening sessions, see ``benchmarks.sessions``.
    """

    backend: str
    options: Callable[[Servers], dict[str, Any]] = lambda servers: {}
    environment: Callable[[Servers], Environment] = lambda servers: {}
    server: str = ""

    def told(self, servers: Servers) -> Environment:
        """Raises ``NotRun`` without the driver or the server."""
        path = self.backend if self.backend.startswith("benchmarks.") else f"{_PACKAGE}.{self.backend}"
        try:
            import_string(path)
        except ImportError as error:
            raise NotRun(str(error)) from error
        setting = {"BACKEND": path, "OPTIONS": self.options(servers)}
        return {"BENCH_NOTIFIER": json.dumps(setting), **self.environment(servers)}


POSTGRESQL = Way("postgres.PostgresNotifier", server="postgresql")
#: What would be if nobody waited for a turn.
COUNTLESS = Way("benchmarks.project.countless.CountlessNotifier")
SQLITE = Way("sqlite.SqliteNotifier")
IN_PROCESS = Way("in_process.InProcessNotifier")
NULL = Way("NullNotifier")

#: Beside PostgreSQL's, which is ours unless it is told otherwise.
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
