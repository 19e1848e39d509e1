"""The sessions of ``make test``, and some for work on one part of the project: ``.venv/bin/nox --list``.

``make NAME`` runs one session. Options after ``--`` go to pytest instead of the session's own choice of tests:
``.venv/bin/nox -s postgresql -- tests/store -k claim``. CONTRIBUTING.md describes which tests run where.
"""

import os
import re
import shutil
import signal
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import nox

from tests.mutations.mutation import all_mutations
from tests.support.interpreters import find_python
from tests.support.servers import CACHE, ROOT, Unavailable
from tests.support.servers.chromium import chromium
from tests.support.servers.downloads import pip_source
from tests.support.servers.postgresql import machine_server, server
from tests.support.servers.sqlite import with_sqlite_3_37

nox.needs_version = ">=2026.10"
nox.options.envdir = str(CACHE / "nox")
nox.options.reuse_venv = "yes"
nox.options.allow_parallel = True
#: ``make test``. After the checks that take seconds, the longest first, so that none is left over at the end.
nox.options.sessions = ["lint", "types", "docs", "newest", "oldest", "slow", "browser", "tasks(6.1)", "wheel"]

#: The environment that nox is installed in: the project, its extras and the group ``dev``.
PYTHON = sys.executable
NEWEST = find_python("3.14", "3.13", "3.12")
OLDEST = find_python("3.11")

#: A process for each core. The tests of a file that uses ports or roles of the server stay in one process ...
BY_FILE = ("--numprocesses", "logical", "--dist", "loadfile")
#: ... and others move to a process that has no more tests, so that no core waits for a long file.
STOLEN = ("--numprocesses", "logical", "--dist", "worksteal")

#: Slow tests start many processes themselves: one process of tests for each core.
WAITING = ("--numprocesses", str(os.cpu_count() or 1), "--dist", "loadfile")

#: Without what ``make test`` leaves out of plain tests: more seeds, and more combinations of kinds of jobs and cases.
PLAIN = ("-m", "not slow and not exhaustive")
ALL_PLAIN = ("-m", "not slow")
SLOW = ("-m", "slow")
#: What may differ between versions of a database: the store's contract, and the plans of statements.
SQL = (
    "tests/store/contract",
    "tests/store/test_flat.py",
    "tests/store/test_query_plans.py",
    "tests/admin/plans/test_plans.py",
    "tests/deduplication/test_history.py",
    "tests/schedules/test_firing.py",
    "tests/schedules/test_plans.py",
    "tests/schedules/test_versions.py",
)
#: The plans of queries of many jobs: a quarter of a million of them on PostgreSQL 14, whose planner is weaker than that
#: of PostgreSQL 18. ``make test-all`` examines them on other databases too, and a million on PostgreSQL.
MILLION = "tests/queries/test_plans.py"
WITH_MILLION = {"JOBCHAINS_TEST_MILLION": "1"}
#: Processes that die while they write. ``tests/chaos/test_records.py`` does the same on PostgreSQL.
KILLS = "tests/records/test_kills.py"
#: The slow tests of ``make test``, beside those that notice a mutation: a worker that is killed, a child process that
#: hangs, and races.
SLOW_ON_POSTGRESQL = {
    "tests/chaos/test_processes.py::test_a_killed_worker_loses_no_job_and_duplicates_no_effect",
    "tests/completing/test_races.py",
    "tests/interventions/test_races.py",
    "tests/isolation/test_hangs.py::test_one_that_hangs_has_failed_once_by_its_timeout",
}
#: All slow tests of what SQLite does in its own way: wake-ups, migrations, locks, and processes that die.
SLOW_ON_SQLITE = {
    "tests/chaos/test_processes.py",
    "tests/chaos/test_schedules.py",
    "tests/model",
    "tests/notifications/test_other_processes.py",
    "tests/notifications/test_sqlite.py",
    "tests/online_migrations",
    "tests/queries/test_view.py",
    "tests/versions",
    KILLS,
}
#: These add network interfaces to the machine, and Chromium aborts its requests then: so they run after the browser.
NETWORK = "tests/chaos/test_network.py"
#: The workers of four databases use half of a server's connections, so they do not run beside other slow tests.
SHARDS = "tests/several_databases/test_shards.py"
#: Each process has a Chromium and its own shops.
BROWSERS = ("--numprocesses", "2", "--dist", "loadfile")
SHORT_FLEET = ("-m", "short", "--numprocesses", "3", "--dist", "load")
#: What does not depend on the database runs on SQLite only: output, arguments, processes, and who may see and do what.
#: Files with tests of locks run on PostgreSQL too.
ON_ONE_DATABASE = (
    "admin/actions", "admin/visibility", "children", "commands", "configuration", "documentation", "packaging",
    "processors", "redaction", "soak", "testing", "typing",
)  # fmt: skip
#: Here, only plain tests run on SQLite only: pages, hooks, payloads, child processes, tasks, and other servers.
PLAIN_ON_ONE_DATABASE = (
    *ON_ONE_DATABASE,
    "admin/dashboard", "admin/pages", "admin/records", "admin/schedules", "failures", "isolation", "middleware",
    "notes", "notifications/servers", "payloads", "presence", "tasks_backend", "telemetry",
)  # fmt: skip
#: What depends on the versions of Python and Django runs with the newest and the lowest ones.
ON_BOTH_VERSIONS = (
    "admin/lists", "commands", "completing", "configuration", "tasks_backend", "telemetry", "worker",
)  # fmt: skip
#: Suites with their own configuration.
OTHER_SUITES = ("browser", "django_tests", "due_work", "fleet")
#: Redis and NATS behave the same beside every database.
WITHOUT_SERVERS = ("--ignore=tests/notifications/servers",)

# A session that is stopped stops its servers first.
signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


@nox.session(venv_backend="none")
def lint(session: nox.Session) -> None:
    """Ruff's rules and format, and the layers of imports."""
    session.run(PYTHON, "-m", "ruff", "check", ".")
    session.run(PYTHON, "-m", "ruff", "format", "--check", ".")
    session.run(str(Path(PYTHON).with_name("lint-imports")))


@nox.session(venv_backend="none")
def types(session: nox.Session) -> None:
    """Check the types with mypy, strict: of the package, of the example, and of the snippets of the documentation."""
    tests = ("tests/settings.py", "tests/support/wheel.py", "tests/mutations", "tests/packaging", "tests/typing")
    session.run(PYTHON, "-m", "mypy", "django_jobchains", "noxfile.py", *tests)
    session.run(PYTHON, "-m", "tests.typing.snippets")
    # With other settings of Django, mypy would discard what it has stored about the package.
    example = ("--config-file", "tests/typing/example.ini", "--cache-dir", ".mypy_cache/example")
    session.run(PYTHON, "-m", "mypy", *example, "example_project")


@nox.session(venv_backend="none")
def docs(session: nox.Session) -> None:
    """Build the documentation site into .cache/docs. A warning, such as of a broken link, is an error."""
    options = ("--builder", "dirhtml", "--fail-on-warning", "--keep-going", "--fresh-env", "--quiet")
    session.run(PYTHON, "-m", "sphinx", *options, "docs", str(CACHE / "docs"))


@nox.session(venv_backend="none")
def example(session: nox.Session) -> None:
    """Run the example project's own tests."""
    run_example(session, PYTHON)


@nox.session(venv_backend="none")
def quick(session: nox.Session) -> None:
    """Run the plain tests on SQLite, without those of the admin, of child processes, Redis and NATS."""
    left_out = (*WITHOUT_SERVERS, *(f"--ignore=tests/{name}" for name in ("admin", "children", "isolation")))
    # No other session runs beside it: three processes for each core, because tests wait more than they compute.
    processes = ("--numprocesses", str(3 * (os.cpu_count() or 1)), "--dist", "worksteal")
    run_tests(session, PYTHON, *PLAIN, *left_out, database="sqlite", options=processes)


@nox.session(venv_backend="none")
def sqlite(session: nox.Session) -> None:
    """Run all tests on SQLite."""
    run_tests(session, PYTHON, database="sqlite")


@nox.session(venv_backend="none")
def postgresql(session: nox.Session) -> None:
    """Run all tests on the machine's PostgreSQL."""
    with required(session), machine_server() as url:
        run_tests(session, PYTHON, database=url)


@nox.session(venv_backend="none")
def slow(session: nox.Session) -> None:
    """Run the slow tests that notice a mutation, and some of processes that die or hang, and of races."""
    run_tests(session, PYTHON, *SLOW, *sorted(guards("sqlite")), database="sqlite", options=WAITING)
    with required(session), machine_server() as url:
        files = SLOW_ON_POSTGRESQL | guards("postgresql")
        run_tests(session, PYTHON, *SLOW, *sorted(files), database=url, options=WAITING)


@nox.session(venv_backend="none")
def all_slow(session: nox.Session) -> None:
    """Run all slow tests: most on the machine's PostgreSQL, some on SQLite."""
    without_locks = set(files_with(r"mark\.slow", *ON_ONE_DATABASE)) - set(files_with("", "commands", "testing"))
    files = SLOW_ON_SQLITE | without_locks
    run_tests(session, PYTHON, *SLOW, *sorted(files), database="sqlite", options=WAITING)
    with required(session), machine_server() as url:
        files = set(files_with(r"mark\.slow")) - {*SQL, *without_locks, NETWORK, SHARDS, KILLS}
        run_tests(session, PYTHON, *SLOW, *sorted(files), database=url, env=WITH_MILLION, options=WAITING)
    with required(session), server(18) as url:
        run_tests(session, PYTHON, MILLION, database=url, env=WITH_MILLION)


@nox.session(python=NEWEST)
def newest(session: nox.Session) -> None:
    """Test the newest Python and Django on PostgreSQL 18, and on SQLite what does not depend on the database."""
    session.install("--upgrade", "-e", ".[all]", "--group", "test")
    run_example(session, "python")
    folders = [f"tests/{name}" for name in PLAIN_ON_ONE_DATABASE]
    run_tests(session, "python", *PLAIN, *folders, database="sqlite", options=STOLEN)
    with required(session), server(18) as url:
        run_tests(session, "python", *PLAIN, *on_postgresql(), database=url, options=STOLEN)


@nox.session(python=NEWEST)
def all_newest(session: nox.Session) -> None:
    """Run all plain tests with the newest Python and Django, on SQLite and on PostgreSQL 18."""
    session.install("--upgrade", "-e", ".[all]", "--group", "test")
    run_example(session, "python")
    run_tests(session, "python", *ALL_PLAIN, database="sqlite", options=STOLEN)
    with required(session), server(18) as url:
        run_tests(session, "python", *ALL_PLAIN, *WITHOUT_SERVERS, database=url, options=STOLEN)


@nox.session(python=OLDEST)
def oldest(session: nox.Session) -> None:
    """Test the lowest versions: the SQL on PostgreSQL 14 and SQLite 3.37, and there what depends on versions too."""
    run_with_lowest_versions(session, [*PLAIN, *SQL, *on_sqlite_3_37()])


@nox.session(python=OLDEST)
def all_oldest(session: nox.Session) -> None:
    """Test the lowest versions: all plain tests and all plans on SQLite 3.37, and the SQL on PostgreSQL 14."""
    run_with_lowest_versions(session, ALL_PLAIN, [MILLION, *BY_FILE])


@nox.session(python=NEWEST)
@nox.parametrize("django", [nox.param("6.1", id="6.1"), nox.param("6.0", id="6.0")])
def tasks(session: nox.Session, django: str) -> None:
    """Run Django's own tests of its tasks framework, and a worker's contract, against the tasks backend."""
    session.install("--upgrade", "-e", ".[postgres]", f"Django~={django}.0", "--group", "tasks")
    version = str(session.run("python", "-m", "django", "--version", silent=True)).strip()
    with required(session), server(18) as url:
        source = pip_source(f"Django=={version}", "tests/tasks", f"{session.bin}/python")
        for database in ("sqlite", url):
            env = {"JOBCHAINS_TEST_DATABASE": database, "PGTZ": "UTC"}
            session.run("python", "-m", "tests.django_tests", str(source), env=env)
            # Worker processes that die take half a minute: each version of Django has them on one database.
            deaths = () if (database == url) == (django == "6.1") else ("-k", "not process")
            contract = ("pytest", "-q", "-c", "tests/due_work/pytest.ini", "tests/due_work", "--due-work-summary")
            session.run("python", "-m", *contract, *deaths, env=env)


@nox.session(venv_backend="none")
def mutations(session: nox.Session) -> None:
    """Break the guards in ``tests/mutations`` one by one, and check that the tests notice."""
    session.run(PYTHON, "-m", "tests.mutations", *session.posargs)


@nox.session(reuse_venv=False)
def wheel(session: nox.Session) -> None:
    """Build the wheel into ``dist``, and run a job with only it and Django installed."""
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    session.run(PYTHON, "-m", "hatchling", "build", external=True)
    (built,) = (ROOT / "dist").glob("*.whl")
    session.run(PYTHON, "-m", "tests.support.wheel", "contents", external=True)
    session.install(str(built))
    session.run("python", "-m", "tests.support.wheel", "job")


@nox.session
def release(session: nox.Session) -> None:
    """Build and check everything that a release consists of, into ``dist``. ``make test`` has passed before."""
    session.run(PYTHON, "-m", "tests.support.release", "check", external=True)
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    session.run(PYTHON, "-m", "hatchling", "build", external=True)
    session.run(PYTHON, "-m", "tests.support.wheel", "contents", external=True)
    session.run(PYTHON, "-m", "tests.support.release", "metadata", external=True)
    (built,) = (ROOT / "dist").glob("*.whl")
    session.install(f"django_jobchains[typed,schedules] @ {built.as_uri()}")
    session.run("python", "-m", "tests.support.release", "readme")
    session.run(PYTHON, "-m", "twine", "check", "--strict", *map(str, (ROOT / "dist").iterdir()), external=True)
    session.run(PYTHON, "-m", "check_wheel_contents", str(built), external=True)
    bill = ("--output-format", "JSON", "--output-file", str(ROOT / "dist" / "sbom.cdx.json"))
    session.run(PYTHON, "-m", "cyclonedx_py", "environment", *bill, session.virtualenv.location, external=True)
    session.run(PYTHON, "-m", "tests.support.release", "bill", external=True)
    session.run(PYTHON, "-m", "tests.support.release", "checksums", external=True)
    session.log("Tag the commit, and upload the files in dist.")


@nox.session(venv_backend="none")
def browser(session: nox.Session) -> None:
    """Drive the example shop and its admin in Chromium. Afterwards, the tests of networks and of ``fleet_short``."""
    run_browser(session, "-m", "not exhaustive", database="sqlite")
    run_networks(session)


@nox.session(venv_backend="none")
def all_browser(session: nox.Session) -> None:
    """Do the same with other themes, sizes, languages and texts, and without scripts. Flows run on PostgreSQL too."""
    run_browser(session, database="sqlite")
    with required(session), server(18) as url:
        run_browser(session, "-m", "flow and not without_scripts", database=url)
    run_networks(session)


@nox.session(venv_backend="none")
def fleet(session: nox.Session) -> None:
    """Workers and web processes behind PgBouncer, and on clusters that fail over: PostgreSQL, NATS, Redis."""
    run_fleet(session)


@nox.session(venv_backend="none")
def fleet_short(session: nox.Session) -> None:
    """A primary that is killed, a host that is cut off, and a NATS cluster that fails over, while a fleet works."""
    run_fleet(session, *SHORT_FLEET)


@nox.session(venv_backend="none")
def pictures(session: nox.Session) -> None:
    """Make the screenshots of the documentation anew."""
    run_browser(session, "-k", "pictures", database="sqlite", pictures=ROOT / "docs" / "pictures")


def run_tests(
    session: nox.Session,
    python: str,
    *selection: str,
    database: str,
    env: Mapping[str, str] | None = None,
    options: Sequence[str] = BY_FILE,
) -> None:
    """Run tests in several processes. Each process makes a database on the named server."""
    tests = session.posargs or selection
    # Otherwise Django sends a statement that sets the time zone on each of thousands of connections.
    env = {"JOBCHAINS_TEST_DATABASE": database, "PGTZ": "UTC", **(env or {})}
    reports = ("-q", "--durations=8", "-p", "no:cacheprovider")
    session.run(python, "-m", "pytest", *reports, *options, *tests, env=env, external=True)


def run_with_lowest_versions(session: nox.Session, *on_sqlite: Sequence[str]) -> None:
    """Run the selected tests on SQLite 3.37, each selection by itself, and the SQL on PostgreSQL 14."""
    constraints = CACHE / "lowest.txt"
    constraints.parent.mkdir(exist_ok=True)
    constraints.write_text("\n".join(lowest_versions()))
    session.install("-e", ".[all]", "--group", "test", "--constraint", str(constraints))
    with required(session):
        env = with_sqlite_3_37(f"{session.bin}/python")
        for selection in on_sqlite:
            run_tests(session, "python", *selection, database="sqlite", env=env, options=STOLEN)
        with server(14) as url:
            run_tests(session, "python", "-m", "not exhaustive", *SQL, MILLION, database=url)


def files_with(pattern: str, *folders: str) -> list[str]:
    """Return the test files with this text. Finding a few tests among all takes each process a quarter of a minute."""
    paths = chain.from_iterable((ROOT / "tests" / folder).rglob("test_*.py") for folder in folders or [""])
    return sorted(str(path.relative_to(ROOT)) for path in paths if re.search(pattern, path.read_text()))


def on_postgresql() -> list[str]:
    """Return the tests that depend on the database: files, and single tests of other files."""
    on_one = files_with("", *PLAIN_ON_ONE_DATABASE)
    left_out = {*on_one, *files_with("", *OTHER_SUITES)}
    locks = files_with(r"committing|connection\.vendor|pytestmark.*postgresql", *PLAIN_ON_ONE_DATABASE)
    single = [
        f"{path}::{name}"
        for path in set(on_one).difference(locks)
        for name in re.findall(r"@pytest\.mark\.postgresql\n(?:@.*\n)*def (\w+)", (ROOT / path).read_text())
    ]
    noticing = [test for test in tests_of_mutations("postgresql") if test.partition("::")[0] in on_one]
    return sorted({*set(files_with("")).difference(left_out), *locks, *single, *noticing})


def on_sqlite_3_37() -> list[str]:
    """Return what depends on versions or on SQLite besides the SQL: files, and tests that notice a mutation."""
    on_newest = files_with("", *set(PLAIN_ON_ONE_DATABASE).difference(ON_BOTH_VERSIONS))
    files = {*files_with("", *ON_BOTH_VERSIONS), *files_with(r"connection\.vendor|sqlite")}
    noticing = {test for test in tests_of_mutations("sqlite") if test.partition("::")[0] not in files}
    left_out = (*SQL, MILLION, *on_newest, *(f"tests/{suite}" for suite in OTHER_SUITES))
    return sorted(test for test in files | noticing if not test.startswith(left_out))


def tests_of_mutations(database: str) -> set[str]:
    """Return the tests that notice a mutation on this database."""
    mutations = [mutation for mutation in all_mutations() if mutation.database == database]
    return set(chain.from_iterable(mutation.tests for mutation in mutations))


def guards(database: str) -> set[str]:
    """Return the slow tests that notice a mutation on this database: files, and tests of other files."""
    slow = set(files_with(r"mark\.slow")).difference((*SQL, MILLION, SHARDS))
    return {test for test in tests_of_mutations(database) if test.partition("::")[0] in slow}


def run_example(session: nox.Session, python: str) -> None:
    session.run(python, "-W", "error", "example_project/manage.py", "test", "example_project")


def run_browser(session: nox.Session, *selection: str, database: str, pictures: Path = CACHE / "browser") -> None:
    """Run the tests in a browser. Screenshots, and the pages of tests that failed, are in ``.cache/browser``."""
    with required(session):
        chromium()
    env = {"JOBCHAINS_TEST_DATABASE": database, "JOBCHAINS_PICTURES": str(pictures)}
    options = ("-q", "-c", "tests/browser/pytest.ini", *BROWSERS)
    session.run(PYTHON, "-m", "pytest", *options, *selection, "tests/browser", env=env)


def run_networks(session: nox.Session) -> None:
    """Run the tests that add network interfaces or need most connections of a server."""
    with required(session), server(18) as url:
        run_tests(session, PYTHON, *SLOW, NETWORK, SHARDS, database=url)
    if not session.posargs:
        run_fleet(session, *SHORT_FLEET)


def run_fleet(session: nox.Session, *options: str) -> None:
    tests = session.posargs or ("tests/fleet",)
    pytest = ("pytest", "-q", "-c", "tests/fleet/pytest.ini", *options, *tests)
    # After Ctrl-C, it ends its processes, and removes its network namespaces.
    session.run(PYTHON, "-m", *pytest, env={"PGTZ": "UTC"}, interrupt_timeout=60, terminate_timeout=60)


@contextmanager
def required(session: nox.Session) -> Iterator[None]:
    """Skip the rest of the session if something that it needs cannot be had; fail where ``CI`` is set."""
    try:
        yield
    except Unavailable as error:
        (session.error if "CI" in os.environ else session.skip)(f"NOT RUN: {error}")


def lowest_versions() -> list[str]:
    """Return a constraint for each lower bound in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = chain(project["dependencies"], *project["optional-dependencies"].values())
    bounds = (re.fullmatch(r"([\w.-]+)(?:\[.*\])?>=([\w.]+)", requirement) for requirement in requirements)
    return [f"{bound[1]}=={bound[2]}" for bound in bounds if bound]
