"""The preload process starts children quickly, and safely."""

import gc
import itertools
import json
import os
import resource
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from django_jobchains.children import child_process, preload_process
from django_jobchains.children.preload_process import Descriptors, ProcessRecord
from django_jobchains.isolation import Isolation
from django_jobchains.pools import ChildCrashed, ChildSession, ChildStartFailed, ReusablePool, TransientPool
from django_jobchains.testing.contracts.pools import on_thread
from django_jobchains.worker.isolated.isolation_pool import IsolationPool
from tests.children.conftest import FUNCTIONS, begun, in_child, is_running, open_files, run
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def _own_preload_process(monkeypatch):
    child_process.close_preload()
    gc.collect()  # Children that nobody has released would free descriptors during a test.
    monkeypatch.setattr(child_process, "proven_modules", {})
    yield
    child_process.close_preload()


@pytest.mark.slow
def test_children_are_fresh_interpreters_if_importing_the_project_starts_threads(capfd):
    pool = TransientPool(setup="tests.children.threaded:set_up", strict=True)
    pids = [in_child(pool, "pid") for _ in range(3)]
    assert len(set(pids)) == 3
    found = in_child(pool, "descriptors")
    assert len(found) == 6
    errors = capfd.readouterr().err
    assert errors.count("importing the project has started threads (of-a-library)") == 1


def test_the_module_of_a_set_up_is_preloaded_after_a_child_was_ready():
    failing = TransientPool(setup=f"{FUNCTIONS}:fail_to_set_up", strict=True)
    with pytest.raises(ChildStartFailed):
        failing.acquire()
    assert list(child_process.proven_modules) == []
    in_child(TransientPool(setup=f"{FUNCTIONS}:set_up", strict=True), "evaluate", "was_set_up")
    assert list(child_process.proven_modules) == [FUNCTIONS]


def test_a_preload_process_that_cannot_import_the_project_is_reported(monkeypatch):
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "no.such.settings")
    with pytest.raises(ChildStartFailed, match="preload process"), ReusablePool(strict=True) as pool:
        pool.acquire()


def test_a_child_that_is_not_ready_in_time_cannot_start(monkeypatch):
    monkeypatch.setattr(child_process, "MAX_START_SECONDS", 0.5)
    with pytest.raises(ChildStartFailed, match=r"not ready within 0\.5 seconds"):
        TransientPool(setup=f"{FUNCTIONS}:hang_in_set_up", strict=True).acquire(timeout=60)


def test_children_do_not_inherit_a_connection_that_importing_the_project_opens(db):
    pool = TransientPool(setup="tests.children.connected:set_up", strict=True)
    # The first child imports the module itself. The second is a fork of the preload process, which has imported it.
    assert [in_child(pool, "connections")[0][1] for _ in range(2)] == [True, False]
    until(lambda: [file.split(":")[0] for file in open_files(child_process.get_preload().pid)].count("socket") == 1)
    assert not any("sqlite" in target for target in open_files(child_process.get_preload().pid))


def test_children_are_fresh_interpreters_on_macos(monkeypatch):
    started = []
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(preload_process, "_spawn", lambda options, inherited, parent, problem: started.append(problem))
    monkeypatch.setattr("os.fork", lambda: pytest.fail("system libraries of macOS do not support it"))
    preload_process.start_child({}, Descriptors(3, 4, 5, 6))
    assert started == ["system libraries of macOS do not support it"]


@pytest.mark.parametrize("level", ["process", "transient"])
def test_children_of_a_worker_have_imported_what_an_attempt_needs(level):
    """The time limit of the attempt must not include it."""
    pool = IsolationPool(Isolation(level, strict=True), 1, "worker")
    child = pool.acquire()
    is_imported = run(child, "evaluate", "'django_jobchains.worker.isolated.child_attempt' in sys.modules")
    pool.terminate()
    assert is_imported


def test_a_child_whose_standard_error_is_never_empty_keeps_nothing_waiting(monkeypatch):
    """Neither while it runs, nor after its end, when other processes may still write there."""
    reads = itertools.count(1)

    def refill(text):
        assert next(reads) < 10, "The other children of the preload process wait."
        os.write(child.stderr_writer, text)

    monkeypatch.setattr(preload_process, "_pass_on", refill)
    report, report_writer = os.pipe()
    child = ProcessRecord(report_writer)
    os.write(child.stderr_writer, b"x" * 1000)
    assert child.read_stderr()
    child.pid = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 5"], {})
    until(child.has_ended)
    child.report_end()
    assert json.loads(os.read(report, 65536)) == {"exitcode": 5, "stderr": "x" * 2000}
    os.close(report)
    os.close(child.stderr_writer)


@pytest.mark.parametrize("is_macos", [True, False])
@pytest.mark.parametrize(("command", "code"), [("exit 5", 5), ("kill -9 $$", -9)])
def test_the_end_of_a_child_is_reported_before_it_is_reaped(monkeypatch, command, code, is_macos):
    """Except on macOS before Python 3.13."""
    if is_macos:
        monkeypatch.delattr(os, "waitid")
    report, writer = socket.socketpair()
    child = ProcessRecord(writer.detach())
    child.pid = os.posix_spawn("/bin/sh", ["sh", "-c", command], {})
    os.close(child.stderr_writer)
    until(child.has_ended)
    child.report_end()
    with report:
        assert json.loads(report.recv(1000)) == {"exitcode": code, "stderr": ""}
    assert Path(f"/proc/{child.pid}").exists() is not is_macos
    child.reap()
    assert not Path(f"/proc/{child.pid}").exists()


@contextmanager
def room_for(count, pid):
    """Let a process open this number of files."""
    folder = Path(f"/proc/{pid}/fd")
    used = {int(path.name) for path in list(folder.iterdir()) if path.is_symlink()}
    limits = range(max(used) + count + 2)
    limit = max(limit for limit in limits if len(set(range(limit)) - used) == count)
    _, hard = before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("is_running", [True, False], ids=["running", "not running"])
def test_a_process_with_too_many_open_files_cannot_start_children(is_running):
    with ReusablePool(strict=True) as pool:
        if is_running:
            child_process.get_preload()
        before = open_files(os.getpid())
        for count in range(8 if is_running else 13):
            with room_for(count, os.getpid()), pytest.raises(ChildStartFailed, match="Too many open files"):
                pool.acquire()
            assert open_files(os.getpid()) == before
        assert in_child(pool, "pid") != os.getpid()


def test_a_preload_process_with_too_many_open_files_starts_no_more_children_and_keeps_the_others(monkeypatch):
    monkeypatch.setattr(child_process, "MAX_EXIT_SECONDS", 0.2)
    with ReusablePool(2, strict=True) as pool, ChildSession(pool) as child:
        pid = child_process.get_preload().pid
        before = open_files(pid)
        for count in range(6):
            with room_for(count, pid), pytest.raises(ChildStartFailed, match="Too many open files"):
                pool.acquire()
            until(lambda: open_files(pid) == before)
        assert in_child(pool, "pid") != run(child, "pid")
        assert child_process.get_preload().pid == pid


@pytest.mark.parametrize(
    "setup", ["tests.children.slow_import", "tests.children.threaded"], ids=["forks", "interpreters"]
)
def test_nothing_is_imported_from_the_current_folder(tmp_path, setup):
    """Only from the folders of the caller's ``sys.path``. Each second child is a fork, or a fresh interpreter."""
    for name in ("json", "sys", "warnings", "linecache"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'a').write({name!r})")
    program = f"""
from django_jobchains.pools import TransientPool, ChildSession
for _ in range(2):
    with ChildSession(TransientPool(setup="{setup}:set_up", strict=True)) as child:
        print(child.run("tests.children.functions:echo", "ran"))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-P", "-c", program]
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "ran\nran\n"), ran.stderr
    assert not (tmp_path / "imported").exists()


@pytest.fixture
def busy(tmp_path, monkeypatch):
    """A child whose call ignores SIGTERM. It was started before the import."""
    monkeypatch.setenv("SLOW_IMPORT", str(tmp_path / "import"))
    with ReusablePool(grace_seconds=0.1, strict=True) as pool:
        child = pool.acquire()
        yield child, begun(child, "hang_without_sigterm")
        pool.release(child)


@pytest.fixture
def importing(busy, tmp_path):
    """While the file exists, the preload process imports the module of a set-up: it starts a second child with it."""
    path = tmp_path / "import"
    pool = TransientPool(setup="tests.children.slow_import:set_up", strict=True)
    in_child(pool, "pid")
    path.touch()
    future = on_thread(lambda: in_child(pool, "pid"))
    until(Path(f"{path}.begun").exists)
    yield path
    path.unlink(missing_ok=True)
    assert isinstance(future.result(30), int)


class TestDuringAnImport:
    def test_time_limits_are_kept(self, busy, importing):
        child, call = busy
        call.stop(0.1)
        assert not is_running(child.pid)
        assert importing.exists()

    def test_the_end_of_a_killed_child_is_noticed(self, busy, importing):
        _, call = busy
        call.kill()
        with pytest.raises(ChildCrashed, match="SIGKILL"):
            call.wait(30)
        assert importing.exists()
