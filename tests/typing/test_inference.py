"""mypy infers the types of inputs and jobs: ``inference.py.txt`` has the expected type or error beside each line."""

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

#: mypy checks the whole package, which takes minutes on a busy machine.
TIMEOUT_SECONDS = 600

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * TIMEOUT_SECONDS)]

pytest.importorskip("mypy")

EXAMPLE = Path(__file__).with_name("inference.py.txt")
ROOT = EXAMPLE.parents[2]
MESSAGE = re.compile(r"^[^:]+:(?P<line>\d+): (?P<kind>error|note): (?P<text>.*)$")
#: An error that follows from another one.
ECHO = "[untyped-decorator]"


@pytest.fixture(scope="module")
def messages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[str]]:
    """Check the example as a strict project without plugins; return the messages of each line."""
    folder = tmp_path_factory.mktemp("typing")
    example = shutil.copy(EXAMPLE, folder / "inference.py")
    config = folder / "mypy.ini"
    config.write_text("[mypy]\nstrict = True\nfollow_imports = silent\nwarn_unused_ignores = False\n")
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", ".mypy_cache/inference"]
    run = subprocess.run(
        [*command, str(example)],
        cwd=ROOT,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    assert run.returncode == 1, run.stdout + run.stderr
    found = defaultdict(list)
    for line in run.stdout.splitlines():
        if match := MESSAGE.match(line):
            found[int(match["line"])].append(f"{match['kind']}: {match['text']}")
    return found


def marked(mark: str) -> list[tuple[int, str]]:
    """Return the lines with a comment ``# mark: …``, and the text of the comment."""
    lines = enumerate(EXAMPLE.read_text().splitlines(), start=1)
    return [(number, line.split(mark)[1].strip()) for number, line in lines if mark in line and "``" not in line]


def test_the_errors_are_those_of_the_marked_lines(messages: dict[int, list[str]]) -> None:
    errors = {
        (line, text.rsplit("[", 1)[1].rstrip("]"))
        for line, texts in messages.items()
        for text in texts
        if text.startswith("error: ") and not text.endswith(ECHO)
    }
    assert sorted(errors) == marked("# error:")


@pytest.mark.parametrize(("line", "revealed"), marked("# revealed:"))
def test_a_revealed_type_is_that_of_the_comment(messages: dict[int, list[str]], line: int, revealed: str) -> None:
    plain = re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", " ".join(messages[line]))
    assert revealed in plain
