"""The settings of the systems that run in Django; ``BENCH_PEER_PROGRAM`` selects one of them."""

import os
from typing import Any

from benchmarks.peers.catalogue import SLOTS
from benchmarks.peers.programs.places import DATABASE
from benchmarks.project.settings import DATABASES as OURS

_TASKS = {
    "django_tasks_db": "django_tasks_db.DatabaseBackend",
    "django_ox": "django_ox.backend.OxBackend",
}
_APPS = {
    "django_tasks_db": ["django_tasks", "django_tasks_db"],
    "django_q2": ["django_q"],
    "django_ox": ["django_ox"],
}
_program = os.environ["BENCH_PEER_PROGRAM"]

SECRET_KEY = "for benchmarks only"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = _APPS[_program]
DATABASES: dict[str, dict[str, Any]] = {"default": {**OURS["default"], "NAME": DATABASE, "CONN_MAX_AGE": None}}
LOGGING = {"version": 1, "disable_existing_loggers": False, "root": {"level": "ERROR"}}
TASKS = {"default": {"BACKEND": _TASKS[_program]}} if _program in _TASKS else {}
# A job times out after a minute and is retried after two, as its documentation recommends. No drain takes that long.
Q_CLUSTER = {
    "name": "bench",
    "orm": "default",
    "workers": SLOTS,
    "timeout": 60,
    "retry": 120,
    "bulk": 1,
    "save_limit": 250,
    "log_level": "ERROR",
}
