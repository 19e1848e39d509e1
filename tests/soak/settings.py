"""Settings of the processes of ``tests.soak``."""

from tests.support.worker_settings import *  # noqa: F403
from tests.support.worker_settings import INSTALLED_APPS as APPS

INSTALLED_APPS = [*(app for app in APPS if not app.startswith("tests.")), "tests.soak"]
MIGRATION_MODULES = {"soak": None}
