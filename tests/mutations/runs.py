"""Run pytest in a copy of the working tree, and judge its result."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mutations.mutation import Mutation
from tests.mutations.trees import apply, copied

#: pytest's exit code when tests ran and some failed.
TESTS_FAILED = 1
RUN_SECONDS = 600
#: Errors of a patch that breaks the code itself, not a guard.
BROKEN_CODE = {"ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError", "NameError"}
#: A line of pytest's summary: the test, and the error if the line has one.
FAILURE = re.compile(r"^(?:FAILED|ERROR) (?P<test>\S+)(?:.*? - (?P<error>[\w.]+)(?:[:( ]|$))?", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """``outcome``: caught, survived, does not apply, or error. ``detail``: the test that failed, or the problem."""

    mutation: Mutation
    outcome: str
    seconds: float
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.outcome:<14} {self.seconds:4.0f} s  {self.mutation.name:<48} {self.detail}"


def run_mutation(mutation: Mutation, pristine: Path, databases: dict[str, str]) -> Result:
    """Apply the patch to a copy of the pristine tree, and run its tests there."""
    started = time.monotonic()
    with copied(pristine) as tree:
        if problem := apply(mutation.patch, tree):
            return Result(mutation, "does not apply", time.monotonic() - started, problem)
        outcome, detail = judge(*run_tests(tree, ("-x", *mutation.tests), databases[mutation.database]))
    return Result(mutation, outcome, time.monotonic() - started, detail)


def unfounded(results: Sequence[Result], pristine: Path, databases: dict[str, str]) -> str:
    """Run the tests that caught mutations without any patch. Return the output if some fail."""
    outputs = []
    for database, url in databases.items():
        caught = [result for result in results if result.outcome == "caught" and result.mutation.database == database]
        tests = {result.detail.partition("[")[0] for result in caught}
        if tests:
            with copied(pristine) as tree:
                code, output = run_tests(tree, sorted(tests), url)
            outputs += [output] if code else []
    return "\n".join(outputs)


def judge(code: int, output: str) -> tuple[str, str]:
    """Return the outcome of a run with a patch, and its detail. Only a failed test counts, not broken code."""
    if code == 0:
        return "survived", ""
    failures = [(found["test"], found["error"]) for found in FAILURE.finditer(output)]
    if code != TESTS_FAILED or not failures:
        return "error", f"pytest exited with {code}: {output.strip()[-2000:]}"
    test, error = failures[0]
    if all(name in BROKEN_CODE for _, name in failures):
        return "error", f"{test} failed only with {error}"
    return "caught", test


def run_tests(tree: Path, arguments: Sequence[str], database: str) -> tuple[int, str]:
    """Run pytest in a tree; return its exit code and output. A test that ``make test`` leaves out notices nothing."""
    options = ("-q", "-rfE", "--tb=short", "-p", "no:cacheprovider", "-m", "not exhaustive")
    command = [sys.executable, "-m", "pytest", *options, *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),  # precedes an editable install of the package
        "JOBCHAINS_TEST_DATABASE": database,
        "COLUMNS": "500",  # otherwise pytest shortens the lines of its summary
    }
    try:
        done = subprocess.run(
            command,
            cwd=tree,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=RUN_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return -1, f"pytest did not end within {RUN_SECONDS} seconds."
    return done.returncode, done.stdout
