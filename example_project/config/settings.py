"""Settings of the example shop: SQLite in this folder, or any database named by DATABASE_URL."""

import os
from pathlib import Path
from tempfile import gettempdir

import django

from config.database import database_from_url, sqlite

BASE_DIR = Path(__file__).resolve().parent.parent

# For a shop on your own machine. A real one takes its key from the environment and turns DEBUG off.
SECRET_KEY = os.environ.get("SECRET_KEY", "the example shop keeps no secrets, so this key protects none")
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
    # The admin speaks the visitor's language; the shop itself knows English alone.
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
    # The tests run workers: their threads need a file, not one in memory.
    DATABASES["default"]["TEST"] = {"NAME": Path(gettempdir()) / f"tin-kettle-test-{os.getpid()}.sqlite3"}

# Receipts end in a table, so that they can be read on a page of the shop.
DEFAULT_FROM_EMAIL = "The Tin Kettle <shop@tin-kettle.example>"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "shop.outbox.OutboxBackend"}}
else:
    EMAIL_BACKEND = "shop.outbox.OutboxBackend"

# Every key of JOBCHAINS has a default, and the shop needs no other: its database wakes the workers, unless these do.
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

# The queue of the orders' chains. `manage.py demo` takes one of its own, so that its worker touches no other job.
SHOP_QUEUE = os.environ.get("SHOP_QUEUE", "default")
