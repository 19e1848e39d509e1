"""Settings of worker processes, and of their children, that know the jobs of these tests."""

from tests.support.worker_settings import *  # noqa: F403
from tests.support.worker_settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.isolation.app"]
