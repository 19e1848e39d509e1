"""Settings of worker processes, and of their children, that handle records in child processes."""

from tests.support.worker_settings import *  # noqa: F403
from tests.support.worker_settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.records.worker_app"]
