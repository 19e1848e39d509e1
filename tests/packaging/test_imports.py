"""Every documented module imports in an interpreter that has none of the optional packages."""

import pkgutil
import subprocess
import sys

import django_jobchains

DRIVERS = ("psycopg", "redis", "django_redis", "nats", "pydantic", "opentelemetry", "rich", "django_tasks", "pytest")
#: Modules that exist for the sake of one driver.
OF_A_DRIVER = {
    "django_jobchains.notifications.postgres",
    "django_jobchains.notifications.redis",
    "django_jobchains.notifications.nats",
    "django_jobchains.store.direct",
    "django_jobchains.store.postgresql",
    "django_jobchains.telemetry.otel",
    "django_jobchains.tasks_backend",
    "django_jobchains.pytest_plugin",
}

IMPORT_WITHOUT_DRIVERS = f"""
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {DRIVERS!r}:
            raise ModuleNotFoundError(name + " is blocked", name=name)

sys.meta_path.insert(0, Blocked())
import django
from django.conf import settings

settings.configure(
    USE_TZ=True,
    DATABASES={{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}},
    INSTALLED_APPS=[
        "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.messages",
        "django.contrib.sessions", "django_jobchains",
    ],
)
django.setup()
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def public_modules() -> list[str]:
    found = pkgutil.walk_packages(django_jobchains.__path__, "django_jobchains.")
    return [module.name for module in found if ".migrations" not in module.name and module.name not in OF_A_DRIVER]


def test_every_module_imports_without_optional_packages() -> None:
    modules = public_modules()
    assert "django_jobchains.processors" in modules
    command = [sys.executable, "-W", "error", "-c", IMPORT_WITHOUT_DRIVERS, *modules]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
