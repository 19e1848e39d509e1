import gc
import signal

import pytest
from django.db import connection

from django_jobchains.notifications import waiting
from tests.support.databases import TEMPLATE, copied_database
from tests.support.scenario import mark_combinations

pytest_plugins = ["tests.support.fixtures"]
#: Separate suites: ``make browser`` runs the first one, in processes without Django, ``make fleet`` the second one, and
#: ``make tasks`` the others.
collect_ignore = ["browser", "fleet", "django_tests", "due_work"]


def pytest_configure() -> None:
    """Restore Ctrl-C, which processes that a shell has started in the background ignore, with their child processes."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # the process that began the run ends last
        TEMPLATE.unlink(missing_ok=True)


def pytest_collection() -> None:
    """Disable garbage collection, because the thousands of tests that are created now live until the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the tests from each later garbage collection."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def django_db_modify_db_settings():
    """Keep the name that the settings chose for this process.

    pytest-django's own suffix would not reach the processes that tests start.
    """


@pytest.fixture(scope="session", autouse=True)
def _patience():
    """Allow the first query of a call that waits for a chain to take as long as on a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiting, "FIRST_QUERY_SECONDS", 30)
        yield


if connection.vendor == "sqlite":

    @pytest.fixture(scope="session")
    def django_db_setup(django_test_environment, django_db_blocker):
        """Run the migrations once, and give each process of the run a copy of the result."""
        with django_db_blocker.unblock(), copied_database():
            yield

else:

    @pytest.fixture(scope="session")
    def django_db_setup(django_db_setup, django_db_blocker):
        """End sessions of threads that have not ended yet: PostgreSQL does not drop a database that is in use."""
        yield
        with django_db_blocker.unblock(), connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


@pytest.hookimpl(tryfirst=True)  # before ``-m`` selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if connection.vendor == "sqlite":
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("postgresql")])
        items[:] = [item for item in items if not item.get_closest_marker("postgresql")]
    mark_combinations(items)
