"""The test suite, run by some Python."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.matrix import Failed, Unsteady
from tests.matrix.commands import run

#: More tests than these that fail are not worth a second look.
MOST_UNSTEADY = 3
#: What pytest exits with when tests ran and some failed.
SOME_FAILED = 1


def suite(python: str, *options: str, env: Mapping[str, str]) -> None:
    """Runs the tests; the environment says on which database. ``Unsteady`` if some passed the second time alone."""
    with TemporaryDirectory() as folder:
        command = [python, "-m", "pytest", "-q", "--durations=8", "--durations-min=2", "-o", f"cache_dir={folder}"]
        try:
            run(*command, *options, env=env)
        except Failed as error:
            failed = _failed(Path(folder))
            if error.code != SOME_FAILED or not 0 < len(failed) <= MOST_UNSTEADY:
                raise
            run(*command, *options, "--last-failed", env=env)
            raise Unsteady("\n".join(["passed when run again by themselves:", *failed])) from error


def _failed(cache: Path) -> list[str]:
    names = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(names.read_text())) if names.exists() else []
