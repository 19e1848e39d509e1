"""A mutation is caught only by a test that fails, not by code that cannot be imported or tests that do not exist."""

from pathlib import Path

import pytest

from tests.mutations.mutation import read
from tests.mutations.runs import judge


@pytest.mark.parametrize(
    ("code", "output", "outcome"),
    [
        (0, "3 passed in 0.1s", "survived"),
        (0, "3 skipped in 0.1s", "survived"),
        (1, "FAILED tests/test_a.py::test_b[1-x y] - assert 1 == 2\n1 failed in 0.1s", "caught"),
        (1, "FAILED tests/test_a.py::test_b - app.errors.LeaseLost: Job 1\n1 failed in 0.1s", "caught"),
        (1, "FAILED tests/test_a.py::test_b\n1 failed in 0.1s", "caught"),
        (1, "ERROR tests/test_a.py::test_b - AssertionError: a thread is left\n1 error in 0.1s", "caught"),
        (1, "FAILED tests/test_a.py::test_b - ImportError: cannot import name 'x'\n1 failed in 0.1s", "error"),
        (1, "FAILED tests/test_a.py::test_b - NameError: name 'x' is not defined\n1 failed in 0.1s", "error"),
        (1, "killed by a signal", "error"),
        (2, "ERROR tests/test_a.py - SyntaxError: invalid syntax\n1 error in 0.1s", "error"),
        (4, "ERROR: not found: tests/test_a.py::test_b", "error"),
        (-1, "pytest did not end within 300 seconds.", "error"),
    ],
)
def test_only_a_failed_test_catches_a_mutation(code: int, output: str, outcome: str) -> None:
    assert judge(code, output)[0] == outcome


def test_the_header_of_a_patch_is_read(tmp_path: Path) -> None:
    path = tmp_path / "lock.patch"
    path.write_text("Guard: Rows: locked.\nTests: tests/a.py tests/b.py::c\nDatabase: sqlite\n\ndiff --git a/x b/x\n")
    mutation = read(path)
    assert (mutation.name, mutation.guard, mutation.database) == ("lock", "Rows: locked.", "sqlite")
    assert mutation.tests == ("tests/a.py", "tests/b.py::c")


def test_a_patch_without_its_header_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock.patch"
    path.write_text("Guard: Rows are locked.\nTests: tests/a.py\nDatabase: mysql\n\ndiff --git a/x b/x\n")
    with pytest.raises(ValueError, match="lock"):
        read(path)
