"""``BENCH_DATABASE_URL`` names the PostgreSQL server, ``BENCH_DATABASE_NAME`` the database that is made and dropped
there, ``BENCH_SQLITE`` the file, ``BENCH_NOTIFIER`` the setting ``NOTIFIER`` as JSON, ``BENCH_REDIS`` the cache's URL;
the rest is default."""

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

NAME = os.environ.get("BENCH_DATABASE_NAME", "jobchains_bench")
SERVER = urlsplit(os.environ.get("BENCH_DATABASE_URL", "postgresql://postgres@127.0.0.1:5432/postgres"))

SECRET_KEY = "measures nothing secret"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django_jobchains", "benchmarks.project"]
MIGRATION_MODULES = {"project": None}

JOBCHAINS = {"NOTIFIER": json.loads(os.environ.get("BENCH_NOTIFIER", "{}"))}
if "BENCH_REDIS" in os.environ:
    CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": os.environ["BENCH_REDIS"]}}

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

#: The same tables once more, in a schema of their own: beside the empty ones some that are full.
DATABASES["backlog"] = {
    **DATABASES["default"],
    "OPTIONS": {**DATABASES["default"]["OPTIONS"], "options": "-c search_path=backlog"},
}
