"""``python -m tests.django_tests FOLDER`` runs the tests of Django's tasks framework, which are in this folder.

Before they run, a few words in a copy of their text are replaced, so that they use our backend and commit to the
database. The tests that fail have to be those that a page of the documentation lists, each with a reason: one that
fails and is not listed is an error, and so is one that is listed and passes.
"""

import os
import re
import sys
import tempfile
import unittest
from pathlib import Path

import django

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "tests-of-the-tasks-backend.md"
#: All that is changed in the tests.
REPLACED = {
    "django.tasks.backends.dummy": "tests.django_tests.backends",
    "django.tasks.backends.immediate": "tests.django_tests.backends",
    # Results are in the database, where another connection has to see them.
    "SimpleTestCase": "TransactionTestCase",
    "available_apps = []": "available_apps = None",
}


class Result(unittest.TestResult):
    """Remembers for each test whether it passed, and the traceback of each that failed."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.started = {}

    def startTest(self, test):
        super().startTest(test)
        self.started[name_of(test)] = ""

    def addError(self, test, error):
        super().addError(test, error)
        self.fail(test, error)

    def addFailure(self, test, error):
        super().addFailure(test, error)
        self.fail(test, error)

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        if error is not None:
            self.fail(test, error)

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.started[name_of(test)] += f"It was skipped: {reason}\n"

    def fail(self, test, error):
        name = name_of(test)
        self.started[name] = self.started.get(name, "") + self._exc_info_to_string(error, test)


def name_of(test):
    return test.id().removeprefix("tasks.")


def copy_tests(source, folder):
    """Write a copy of Django's tests, in which our backend replaces Django's."""
    folder.mkdir()
    for path in source.glob("*.py"):
        text = path.read_text()
        for old, new in REPLACED.items():
            text = text.replace(old, new)
        (folder / path.name).write_text(text)


def run(folder):
    """Run the tests in this folder, and return what failed by the name of the test, "" for one that passed."""
    from django.test.runner import DiscoverRunner

    runner = DiscoverRunner(verbosity=0, interactive=False)
    runner.setup_test_environment()
    databases = runner.setup_databases(aliases={"default": False})
    try:
        result = Result()
        unittest.defaultTestLoader.discover(str(folder), "test*.py", str(folder.parent)).run(result)
    finally:
        runner.teardown_databases(databases)
    return result.started


def left_out(version):
    """Return the tests that the page lists for this version of Django: names from the first column of its table."""
    rows = re.findall(r"^\| `([\w.]+)` \| ([\d., ]+) \| (.+) \|$", PAGE.read_text(), re.MULTILINE)
    return {name for name, versions, _ in rows if version in versions.split(", ")}


def problems(outcomes, listed):
    failed = {name for name, error in outcomes.items() if error}
    for name in sorted(failed - listed):
        yield f"{name} failed, and {PAGE.name} does not list it.\n{outcomes[name]}"
    for name in sorted(listed & outcomes.keys() - failed):
        yield f"{name} passed, but {PAGE.name} lists it as left out."
    for name in sorted(listed - outcomes.keys()):
        yield f"{PAGE.name} lists {name}, which is not one of the tests."


def main(source):
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.django_tests.settings"
    django.setup()
    from django.db import connection

    version = ".".join(map(str, django.VERSION[:2]))
    listed = left_out(version)
    with tempfile.TemporaryDirectory() as name:
        copy_tests(Path(source), Path(name, "tasks"))
        sys.path.insert(0, name)
        outcomes = run(Path(name, "tasks"))
    found = list(problems(outcomes, listed))
    print("\n".join(found))
    passed = sum(not error for error in outcomes.values())
    print(
        f"Django {django.__version__} on {connection.vendor}: {passed} of its {len(outcomes)} tests passed, "
        f"{len(listed)} are left out."
    )
    return bool(found) or not passed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
