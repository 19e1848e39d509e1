"""Settings of the processes that tests start: the test's own database, and ``JOBCHAINS`` from the environment."""

import json
import os

from tests.settings import *  # noqa: F403
from tests.settings import DATABASES, INSTALLED_APPS, postgresql

#: Workers start faster without the apps that only answer requests.
FOR_REQUESTS = {"admin", "messages", "sessions", "staticfiles"}
INSTALLED_APPS = [
    *(app for app in INSTALLED_APPS if app.removeprefix("django.contrib.") not in FOR_REQUESTS),
    "tests.support.worker_app",
]
ROOT_URLCONF = __name__
urlpatterns: list[object] = []
JOBCHAINS = json.loads(os.environ.get("JOBCHAINS_TEST_OPTIONS", "{}"))
#: Where tests use a transaction pooler, this alias connects to the server directly.
if direct := os.environ.get("JOBCHAINS_TEST_DIRECT"):
    DATABASES["default"]["DISABLE_SERVER_SIDE_CURSORS"] = True
    DATABASES["direct"] = postgresql(direct)
DATABASES["default"].setdefault("OPTIONS", {}).update(
    json.loads(os.environ.get("JOBCHAINS_TEST_DATABASE_OPTIONS", "{}"))
)
#: The name of the isolation level of psycopg's transactions.
if level := os.environ.get("JOBCHAINS_TEST_ISOLATION"):
    from psycopg import IsolationLevel

    DATABASES["default"]["OPTIONS"] = {"isolation_level": IsolationLevel[level]}
