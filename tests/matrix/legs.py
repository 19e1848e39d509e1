"""What each leg runs."""

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from tests.matrix import CACHE, ROOT, environments, wheel
from tests.matrix.browser import chromium
from tests.matrix.commands import run
from tests.matrix.postgresql import at_hand, server
from tests.matrix.sqlite import with_sqlite_3_37
from tests.matrix.suites import suite

PYTHON = sys.executable

#: Each test runs on both databases, but not everywhere: what takes long on the machine's own versions,
SLOW = ("-m", "slow")
#: the rest at one end of the matrix for each database,
QUICK = ("-m", "not slow")
#: and with every version of a database what it may do differently: statements and their plans.
OF_DATABASES = tuple(
    f"tests/{name}"
    for name in ("deduplication", "interventions/test_plans.py", "overview", "pruning", "queries", "store")
)
#: What asks no database is tested beside SQLite.
OF_NONE = tuple(
    f"--ignore=tests/{name}" for name in ("benchmarks", "configuration", "packaging", "processors", "testing", "typing")
)
#: What a server that wakes does, and how long that takes, is the same whatever the database is.
OF_SERVERS = tuple(f"--ignore=tests/notifications/{name}" for name in ("nats", "redis"))
#: The newest of their drivers.
OF_DRIVERS = ("tests/notifications/nats/test_nats_contract.py", "tests/notifications/redis/test_redis.py")


def lint() -> None:
    run(PYTHON, "-m", "ruff", "check", ".")
    run(PYTHON, "-m", "ruff", "format", "--check", ".")
    run(str(Path(PYTHON).with_name("lint-imports")))


def types() -> None:
    run(
        PYTHON, "-m", "mypy", "django_jobchains", "tests/settings.py", "tests/matrix", "tests/packaging", "tests/typing"
    )
    run(PYTHON, "-m", "mypy", "--config-file", "tests/typing/example.ini", "example_project")


def example() -> None:
    example_tests(PYTHON)


def example_tests(python: str) -> None:
    run(python, "-W", "error", "example_project/manage.py", "test", "example_project")


def on_sqlite() -> None:
    suite(PYTHON, env={"JOBCHAINS_TEST_DATABASE": "sqlite"})


def on_postgresql() -> None:
    url = at_hand(PYTHON)
    with nullcontext(url) if url else server(18) as database:
        suite(PYTHON, env={"JOBCHAINS_TEST_DATABASE": database})


def slow_on_sqlite() -> None:
    suite(PYTHON, *SLOW, *OF_SERVERS, env={"JOBCHAINS_TEST_DATABASE": "sqlite"})


def slow_on_postgresql() -> None:
    url = at_hand(PYTHON)
    with nullcontext(url) if url else server(18) as database:
        suite(PYTHON, *SLOW, env={"JOBCHAINS_TEST_DATABASE": database})


def newest_example() -> None:
    example_tests(environments.newest())


def newest_on_sqlite() -> None:
    suite(environments.newest(), *QUICK, *OF_DATABASES, *OF_DRIVERS, env={"JOBCHAINS_TEST_DATABASE": "sqlite"})


def newest_on_postgresql() -> None:
    python = environments.newest()
    with server(18) as database:
        suite(python, *QUICK, *OF_NONE, *OF_SERVERS, env={"JOBCHAINS_TEST_DATABASE": database})


def oldest_on_sqlite() -> None:
    python = environments.oldest()
    suite(python, *QUICK, env={"JOBCHAINS_TEST_DATABASE": "sqlite", **with_sqlite_3_37(python)})


def oldest_on_postgresql() -> None:
    python = environments.oldest()
    with server(14) as database:
        suite(python, *QUICK, *OF_DATABASES, env={"JOBCHAINS_TEST_DATABASE": database})


def browser_on_sqlite() -> None:
    in_browser(env={"JOBCHAINS_TEST_DATABASE": "sqlite"})


def browser_on_postgresql() -> None:
    url = at_hand(PYTHON)
    with nullcontext(url) if url else server(18) as database:
        in_browser("-m", "flow", env={"JOBCHAINS_TEST_DATABASE": database})


def pictures() -> None:
    places = {"JOBCHAINS_TEST_DATABASE": "sqlite", "JOBCHAINS_PICTURES": str(ROOT / "docs" / "pictures")}
    in_browser("-k", "pictures", env=places)


def in_browser(*options: str, env: dict[str, str]) -> None:
    """Screenshots, and the pages of tests that failed, are in .cache/browser."""
    chromium()  # says so, if there is none
    places = {"JOBCHAINS_PICTURES": str(CACHE / "browser"), **env}
    suite(environments.with_playwright(PYTHON), "-c", "tests/browser/pytest.ini", *options, "tests/browser", env=places)


#: Each leg's parts; a part is what the summary has a line for.
LEGS: dict[str, dict[str, Callable[[], None]]] = {
    "lint": {"lint": lint},
    "types": {"types": types},
    "slow": {"slow, PostgreSQL": slow_on_postgresql, "slow, SQLite": slow_on_sqlite},
    "newest": {
        "newest, PostgreSQL 18": newest_on_postgresql,
        "newest, SQLite": newest_on_sqlite,
        "newest, example": newest_example,
    },
    "oldest": {
        "oldest, PostgreSQL 14": oldest_on_postgresql,
        "oldest, SQLite 3.37": oldest_on_sqlite,
    },
    "example": {"example": example},
    "wheel": {"wheel": wheel.check},
    "browser": {"browser, SQLite": browser_on_sqlite, "browser, PostgreSQL": browser_on_postgresql},
    # All tests on one database, for whoever works on them.
    "postgresql": {"postgresql": on_postgresql},
    "sqlite": {"sqlite": on_sqlite},
    # The screenshots of the documentation, made anew.
    "pictures": {"pictures": pictures},
}
#: The order in which parts are begun; the others come last.
ORDER = (
    "lint",
    "types",
    "newest, PostgreSQL 18",
    "slow, PostgreSQL",
    "oldest, SQLite 3.37",
    "slow, SQLite",
    "oldest, PostgreSQL 14",
    "browser, SQLite",
)
