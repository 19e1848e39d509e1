import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from django_jobchains.children import preload
from django_jobchains.pools import ChildSession, ReusablePool

FUNCTIONS = "tests.children.functions"


@pytest.fixture(params=["forks", pytest.param("fresh interpreters", marks=pytest.mark.slow)], scope="module")
def each_way_to_start(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start children as forks of the preload process, and as fresh interpreters, because it has another thread."""
    if request.param == "forks":
        yield
        return
    preload.close_preload()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(preload, "proven_modules", {"tests.children.threaded": None})
        with ChildSession() as child:
            assert "run_spawned" in Path(f"/proc/{child.pid}/cmdline").read_text()
        yield
    preload.close_preload()


@pytest.fixture(scope="session")
def shared_pool() -> Iterator[ReusablePool]:
    """One child, for tests that do not depend on its state."""
    with ReusablePool(strict=True) as pool:
        yield pool


@pytest.fixture
def run(shared_pool: ReusablePool) -> Callable[..., Any]:
    """Call a function of the tests in a child."""

    def run(name: str, payload: Any = None, **options: Any) -> Any:
        with ChildSession(shared_pool) as child:
            return child.run(f"{FUNCTIONS}:{name}", payload, **options)

    return run


def is_running(pid: int) -> bool:
    """Return whether a process exists and is not a zombie that its parent has not collected yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        return False


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def pids_in(marks: Path) -> list[int]:
    """Return the process ids that ``hang_in_c`` has written; none before it has run."""
    return [int(pid) for pid in marks.read_text().split()] if marks.exists() else []
