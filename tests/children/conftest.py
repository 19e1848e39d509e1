import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from django_jobchains.children import child_process
from django_jobchains.pools import ChildSession, ReusablePool
from tests.support.waiting import until

FUNCTIONS = "tests.children.functions"


@pytest.fixture(params=["forks", pytest.param("fresh interpreters", marks=pytest.mark.slow)], scope="module")
def each_way_to_start(request):
    """Start children as forks of the preload process, and as fresh interpreters, because it has another thread."""
    if request.param == "forks":
        yield
        return
    child_process.close_preload()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(child_process, "proven_modules", {"tests.children.threaded": None})
        with ChildSession() as child:
            assert "run_spawned" in Path(f"/proc/{child.pid}/cmdline").read_text()
        yield
    child_process.close_preload()


@pytest.fixture(scope="session")
def shared_pool():
    """One child, for tests that do not depend on its state."""
    with ReusablePool(strict=True) as pool:
        yield pool


@pytest.fixture
def process(shared_pool):
    """A child process."""
    with ChildSession(shared_pool) as child:
        yield child


@pytest.fixture
def thread(monkeypatch):
    """A thread that replaces a child process, because none can start."""
    monkeypatch.setattr("django_jobchains.children.pooled_child.start_problem", lambda: "none here")
    with ReusablePool() as pool, ChildSession(pool) as child:
        assert child.level == "thread"
        yield child


@pytest.fixture(params=["process", "thread"])
def child(request):
    """A child process, or the thread that replaces one."""
    return request.getfixturevalue(request.param)


def run(child, name, payload=None, **options):
    """Call a function of the tests in a child."""
    return child.run(f"{FUNCTIONS}:{name}", payload, **options)


def in_child(pool, name, payload=None, **options):
    """Call a function of the tests in a child of a pool."""
    with ChildSession(pool) as child:
        return run(child, name, payload, **options)


def begun(child, name, payload=None):
    """Start a call of a function that sends a message and waits, and return the call when it has begun."""
    messages = []
    call = child.start(f"{FUNCTIONS}:{name}", payload, on_message=messages.append)
    until(lambda: call.wait(0.01) and messages)
    return call


def is_running(pid):
    """Return whether a process exists and is not a zombie that its parent has not collected yet."""
    return state_of(pid) not in (None, "Z", "X")


def state_of(pid):
    """Return the state of a process, such as "Z" if it has ended and its parent has not collected it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None


def kill(pid):
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def open_files(pid):
    """Return the targets of the descriptors of a process."""
    return [str(path.readlink()) for path in list(Path(f"/proc/{pid}/fd").iterdir()) if path.is_symlink()]


def pids_in(marks):
    """Return the process ids that ``hang_in_c`` has written; none before it has run."""
    return [int(pid) for pid in marks.read_text().split()] if marks.exists() else []
