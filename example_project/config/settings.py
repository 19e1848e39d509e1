"""Settings of the example shop. The database is SQLite in this folder, or the one in DATABASE_URL."""

import os
from pathlib import Path
from tempfile import gettempdir

import django

from config.database import database_from_url, sqlite

BASE_DIR = Path(__file__).resolve().parent.parent

# These are for development. In production, set SECRET_KEY in the environment and turn DEBUG off.
SECRET_KEY = os.environ.get("SECRET_KEY", "an insecure key, for development only")
DEBUG = os.environ.get("DEBUG", "1") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "[::1]"]

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "django_jobchains",
    "shop",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "config.csp.ContentSecurityPolicy",
    "django.contrib.sessions.middleware.SessionMiddleware",
    # The admin follows the visitor's language. The shop itself is in English only.
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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

ROOT_URLCONF = "config.urls"
WSGI_APPLICATION = "config.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_TZ = True

DATABASE_URL = os.environ.get("DATABASE_URL", "")
DATABASES = {"default": database_from_url(DATABASE_URL) if DATABASE_URL else sqlite(BASE_DIR / "db.sqlite3")}
if not DATABASE_URL:
    # Tests start workers, whose threads need a file: each would have its own in-memory database.
    DATABASES["default"]["TEST"] = {"NAME": Path(gettempdir()) / f"tin-kettle-test-{os.getpid()}.sqlite3"}

# Mail is stored in a table, so that a page of the shop can show it.
DEFAULT_FROM_EMAIL = "The Tin Kettle <shop@tin-kettle.example>"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "shop.outbox.OutboxBackend"}}
else:
    EMAIL_BACKEND = "shop.outbox.OutboxBackend"

# The defaults of JOBCHAINS are enough. REDIS_URL and NATS_URL replace the database's own wake-ups.
JOBCHAINS: dict[str, object] = {}
REDIS_URL, NATS_URL = os.environ.get("REDIS_URL"), os.environ.get("NATS_URL")
if REDIS_URL:
    CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": REDIS_URL}}
    JOBCHAINS["NOTIFIER"] = {
        "BACKEND": "django_jobchains.notifications.redis.RedisNotifier",
        "OPTIONS": {"prefix": "tin_kettle"},
    }
elif NATS_URL:
    JOBCHAINS["NOTIFIER"] = {
        "BACKEND": "django_jobchains.notifications.nats.NatsNotifier",
        "OPTIONS": {"servers": NATS_URL, "prefix": "tin_kettle"},
    }

# Tasks of Django's own framework run on the same workers.
TASKS = {"default": {"BACKEND": "django_jobchains.tasks_backend.JobchainsBackend"}}

# The queue of the orders' chains. `manage.py demo` uses a separate queue, so that its worker runs no other jobs.
SHOP_QUEUE = os.environ.get("SHOP_QUEUE", "default")
