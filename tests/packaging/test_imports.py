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
    "django_jobchains.notifications.nats_budgets",
    "django_jobchains.notifications.nats_connection",
    "django_jobchains.notifications.nats_listener",
    "django_jobchains.notifications.nats_thread",
    "django_jobchains.store.direct",
    "django_jobchains.store.postgresql",
    "django_jobchains.telemetry.otel",
    "django_jobchains.tasks_backend",
    "django_jobchains.pytest_plugin",
}
#: Tests for third parties.
CONTRACTS = "django_jobchains.testing.contracts"

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
    names = [module.name for module in found if ".migrations" not in module.name and CONTRACTS not in module.name]
    return [name for name in names if name not in OF_A_DRIVER]


def imported(*names: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", IMPORT_WITHOUT_DRIVERS, *names]
    return subprocess.run(command, capture_output=True, text=True)


def test_every_module_imports_without_optional_packages() -> None:
    modules = public_modules()
    assert "django_jobchains.processors" in modules
    done = imported(*modules)
    assert done.returncode == 0, done.stderr


def test_the_contracts_say_what_they_need() -> None:
    done = imported(CONTRACTS)
    assert f"ImportError: {CONTRACTS} holds pytest tests: pip install pytest pytest-django" in done.stderr
