"""Keys and codecs, a registry for the test, and the content of the tables."""

from contextlib import contextmanager

import pytest
from django.apps import apps
from django.db import connection
from django.test import override_settings

from django_jobchains.models import DeferredWrite
from django_jobchains.processors import Backoff
from tests.admin.conftest import staff
from tests.support.attempts import WITHOUT_WAKE_UPS
from tests.support.fixtures import only_slice

__all__ = ("staff",)

OLD_KEY = "b2xkIGtleSBvbGQga2V5IG9sZCBrZXkgb2xkIGtleSA="
NEW_KEY = "bmV3IGtleSBuZXcga2V5IG5ldyBrZXkgbmV3IGtleSA="
#: A word in each payload. No table may contain it.
CANARY = "canary4711"


def fernet(*keys):
    """``JOBCHAINS`` with the Fernet codec."""
    backend = "django_jobchains.payloads.codecs.FernetCodec"
    return {**WITHOUT_WAKE_UPS, "PAYLOAD_CODEC": {"BACKEND": backend, "OPTIONS": {"keys": list(keys)}}}


@contextmanager
def codec(*keys):
    """Encrypt with these keys. Without keys, use no codec."""
    with override_settings(JOBCHAINS=fernet(*keys) if keys else WITHOUT_WAKE_UPS):
        yield


@pytest.fixture(autouse=True)
def _encrypted():
    with codec(OLD_KEY):
        yield


processors = only_slice(backoff=Backoff(0, 1, 0, 0))


def raw_tables():
    """Return all rows of all tables of the app and of the admin's log, as the database returns them."""
    models = [*apps.get_app_config("django_jobchains").get_models(), apps.get_model("admin", "LogEntry")]
    assert DeferredWrite in models
    with connection.cursor() as cursor:
        texts = []
        for model in models:
            cursor.execute(f"SELECT * FROM {connection.ops.quote_name(model._meta.db_table)}")
            texts += [repr(row) for row in cursor.fetchall()]
    return "\n".join(texts)
