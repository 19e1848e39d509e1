"""Every documented module can be imported without the optional packages, and without Django's admin."""

import pkgutil
import subprocess
import sys

import pytest

import django_jobchains

pytestmark = pytest.mark.slow

DRIVERS = (
    "psycopg",
    "redis",
    "django_redis",
    "nats",
    "pydantic",
    "rich",
    "cryptography",
    "pytest",
    "opentelemetry",
    "prometheus_client",
    "cronsim",
    "sentry_sdk",
    "django_tasks",
)
#: Modules that need an optional package.
OF_A_DRIVER = {
    "django_jobchains.notifications.postgres",
    "django_jobchains.notifications.redis",
    "django_jobchains.notifications.nats",
    "django_jobchains.notifications.nats.budgets",
    "django_jobchains.notifications.nats.thread",
    "django_jobchains.store.postgresql",
    "django_jobchains.store.postgresql.claim",
    "django_jobchains.store.postgresql.dialect",
    "django_jobchains.store.postgresql.wire",
    "django_jobchains.pytest_plugin",
    "django_jobchains.tasks_backend",
    "django_jobchains.tasks_backend.framework",
    "django_jobchains.tasks_backend.results",
    "django_jobchains.tasks_backend.task_types",
    "django_jobchains.contrib.sentry",
    "django_jobchains.telemetry.otel",
    "django_jobchains.telemetry.otel.carrier",
    "django_jobchains.telemetry.otel.metrics",
    "django_jobchains.telemetry.otel.prometheus",
    "django_jobchains.telemetry.otel.tracing",
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


def imported(*names: str, script: str = IMPORT_WITHOUT_DRIVERS) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "error", "-c", script, *names], capture_output=True, text=True)


def test_every_module_imports_without_optional_packages() -> None:
    modules = public_modules()
    assert "django_jobchains.processors" in modules
    done = imported(*modules)
    assert done.returncode == 0, done.stderr


def test_every_module_imports_where_processes_cannot_be_forked_as_on_windows() -> None:
    without_forks = "import os\ndel os.fork, os.register_at_fork\n" + IMPORT_WITHOUT_DRIVERS
    done = imported(*public_modules(), script=without_forks)
    assert done.returncode == 0, done.stderr


def test_the_contracts_name_what_they_need() -> None:
    done = imported(CONTRACTS)
    assert f"ImportError: {CONTRACTS} holds pytest tests: pip install pytest pytest-django" in done.stderr


ROOT_NAMES = (
    "Backoff",
    "Batch",
    "Concurrency",
    "Continuation",
    "Deduplicate",
    "FailJob",
    "FailedJob",
    "JobType",
    "Lease",
    "Processors",
    "Rate",
    "RescheduleJob",
    "Retention",
    "RunningJob",
    "chains",
    "current_database",
    "limits",
    "queues",
    "records",
    "schedules",
    "use_database",
)

IMPORT_WITHOUT_SETTINGS = """
import sys
import django_jobchains
from django.conf import settings

assert not settings.configured
loaded = [name for name in sys.modules if name.startswith("django_jobchains.") or name == "django.db.models"]
assert not loaded, loaded
"""


def test_importing_the_package_loads_no_module_and_needs_no_settings() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", IMPORT_WITHOUT_SETTINGS], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_public_names_of_the_package_are_those_of_its_modules() -> None:
    from django_jobchains import chains, conf, limits, processors, queues, records, schedules

    assert django_jobchains.__all__ == ROOT_NAMES
    assert sorted({*ROOT_NAMES, "__version__"}) == dir(django_jobchains)
    for module in (chains, limits, queues, records, schedules):
        assert django_jobchains.__getattr__(module.__name__.split(".")[1]) is module
    assert django_jobchains.use_database is conf.use_database
    assert django_jobchains.current_database is conf.current_database
    for name in ROOT_NAMES[:14]:
        assert getattr(django_jobchains, name) is getattr(processors, name)
    with pytest.raises(AttributeError, match="no attribute 'Chain'"):
        django_jobchains.Chain  # noqa: B018


USE_WITHOUT_ADMIN = """
import django
from django.conf import settings

settings.configure(
    INSTALLED_APPS=["django_jobchains"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
)
django.setup()

from django.core.management import call_command
from django.template import engines

call_command("check")
assert engines["django"].from_string("{{ 1 }}").render({}) == "1"
"""


def test_templates_render_without_the_admin() -> None:
    subprocess.run([sys.executable, "-c", USE_WITHOUT_ADMIN], check=True, capture_output=True, text=True)
