"""Settings of the test suite.

``JOBCHAINS_TEST_DATABASE`` is the database: ``sqlite``, which is the default, or ``postgresql://…``.
``JOBCHAINS_TEST_STORE`` is the dotted path of another store than the one that belongs to the database.
"""

import os
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

SECRET_KEY = "not-a-secret"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_jobchains",
    "tests.shop",
    "tests.records",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]
ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
MIGRATION_MODULES = {"shop": None, "records": None}


def database_name() -> str:
    """Return the name of this process's database: each process of a parallel run has its own."""
    name = os.environ.get("JOBCHAINS_TEST_NAME", f"test_jobchains_{os.getpid()}")
    # Removed, so that processes that a test starts use the same name.
    worker = os.environ.pop("PYTEST_XDIST_WORKER", "")
    return f"{name}_{worker}" if worker else name


# All processes of a run share these environment variables. The first process names the file from which the databases
# of the others are copied.
TEMPLATE_NAME = os.environ.setdefault("JOBCHAINS_TEST_TEMPLATE", f"test_jobchains_{os.getpid()}_template")
# A process that a test starts works on the same database as the test itself.
DATABASE_NAME = os.environ["JOBCHAINS_TEST_NAME"] = database_name()


def sqlite() -> dict[str, Any]:
    """Return settings for a file that threads and processes share. Its data need not survive a crash of the machine."""
    path = str(Path(tempfile.gettempdir()) / f"{DATABASE_NAME}.sqlite3")
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
        },
        "TEST": {"NAME": path},
    }


def postgresql(url: str) -> dict[str, Any]:
    """Return the settings of a separate database on the server that the URL names. The URL's path is ignored."""
    parts = urlsplit(url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": DATABASE_NAME,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "TEST": {"NAME": DATABASE_NAME},
    }


def database(url: str) -> dict[str, Any]:
    if url in ("", "sqlite"):
        return sqlite()
    if url.startswith(("postgresql://", "postgres://")):
        return postgresql(url)
    raise ValueError(f"JOBCHAINS_TEST_DATABASE is neither 'sqlite' nor a postgresql:// URL: {url!r}")


if store := os.environ.get("JOBCHAINS_TEST_STORE"):
    JOBCHAINS = {"STORE": store}

DATABASES = {"default": {"CONN_MAX_AGE": 0, **database(os.environ.get("JOBCHAINS_TEST_DATABASE", ""))}}
