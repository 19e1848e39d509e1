"""The settings of the benchmarks' project, configured by environment variables.

- ``BENCH_DATABASE_URL``: the PostgreSQL server.
- ``BENCH_DATABASE_NAME``: the database that is created and dropped there.
- ``BENCH_SQLITE``: the SQLite file.
- ``BENCH_NOTIFIER``: the setting ``NOTIFIER`` as JSON.
- ``BENCH_ISOLATION``: the arguments of an ``Isolation`` as JSON, for the setting ``ISOLATION``.
- ``BENCH_REDIS``: the URL of the cache.
- ``BENCH_TASKS``: whether there is a backend for Django's tasks.
"""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django_jobchains.isolation import Isolation

NAME = os.environ.get("BENCH_DATABASE_NAME", "jobchains_bench")
SERVER = urlsplit(os.environ.get("BENCH_DATABASE_URL", "postgresql://postgres@127.0.0.1:5432/postgres"))

SECRET_KEY = "for benchmarks only"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_jobchains", "benchmarks.project"]
MIGRATION_MODULES = {"project": None}

JOBCHAINS: dict[str, Any] = {"NOTIFIER": json.loads(os.environ.get("BENCH_NOTIFIER", "{}"))}
if "BENCH_ISOLATION" in os.environ:
    JOBCHAINS["ISOLATION"] = Isolation(**json.loads(os.environ["BENCH_ISOLATION"]))
if "BENCH_REDIS" in os.environ:
    CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["BENCH_REDIS"]}}

BACKENDS = {"default": {"BACKEND": "django_jobchains.tasks_backend.JobchainsBackend"}}
if "BENCH_TASKS" in os.environ:
    TASKS = BACKENDS

DATABASES: dict[str, dict[str, Any]] = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": NAME,
        "USER": unquote(SERVER.username or ""),
        "PASSWORD": unquote(SERVER.password or ""),
        "HOST": unquote(SERVER.hostname or ""),
        "PORT": str(SERVER.port or ""),
        "OPTIONS": dict(parse_qsl(SERVER.query)),
    },
    "sqlite": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("BENCH_SQLITE", Path.cwd() / "jobchains_bench.sqlite3"),
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL",
        },
    },
}

#: The same tables in a separate schema, so that there are full tables and empty ones.
DATABASES["backlog"] = {
    **DATABASES["default"],
    "OPTIONS": {**DATABASES["default"]["OPTIONS"], "options": "-c search_path=backlog"},
}
