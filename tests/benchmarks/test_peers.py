"""Peers, the systems that are compared with ours: which are measured, and how they are stopped."""

import ast
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import peers
from benchmarks.peers import environments, install
from benchmarks.peers.catalogue import DRAINED, PEERS, Peer
from benchmarks.peers.processes import PeerFailed, Worker

ONE = PEERS[0]
ON_REDIS = next(peer for peer in PEERS if not peer.pending)


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    home = tmp_path / ".venv-peers"
    monkeypatch.setattr(environments, "HOME", home)
    peers.present.cache_clear()
    yield home
    peers.present.cache_clear()


def _install(peer: Peer) -> None:
    """Create only the files that mark the peer as installed."""
    packages = environments.path(peer) / "lib" / "python3.11" / "site-packages"
    for name in peer.distributions:
        folder = packages / f"{name.replace('-', '_').lower()}-1.2.3.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2.3\n")
    (environments.path(peer) / ".ready").write_text("\n".join(peer.packages))


def _interpreter(path: Path, *, is_new_enough: bool) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\nexit {int(not is_new_enough)}\n")
    path.chmod(0o755)
    return str(path)


def test_a_peer_that_is_not_installed_is_skipped_and_named_once(capsys: pytest.CaptureFixture[str]) -> None:
    _install(ONE)

    found = [list(peers.contestants(subject, is_quick=True)) for subject in peers.SUBJECTS]

    assert found == [[] if subject in DRAINED else [ONE.name] for subject in peers.SUBJECTS]
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"Skipping {peer.name}: not installed (make bench-peers)." for peer in PEERS if peer is not ONE]


def test_a_peer_without_its_redis_is_skipped_and_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _install(ON_REDIS)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(peers, "REDIS", f"redis://127.0.0.1:{server.getsockname()[1]}/9")
        # Three peers share this environment, with different configurations.
        assert [peer.environment for peer in peers.present()] == ["celery"] * 3
    peers.present.cache_clear()
    capsys.readouterr()

    assert peers.present() == ()
    assert f"Skipping {ON_REDIS.name}: no Redis server responds" in capsys.readouterr().err


def test_a_peer_with_a_subject_is_measured_only_in_that_cell() -> None:
    for peer in PEERS:
        if peer.subject:
            assert [subject for subject in peers.SUBJECTS if peer.takes(subject)] == [peer.subject]
            assert not peer.amounts.endswith("chains")


def test_a_peer_is_measured_only_in_what_it_supports() -> None:
    for name in ("pgqueuer", "django-tasks-db"):
        _install(next(peer for peer in PEERS if peer.name == name))

    found = {
        subject: list(peers.contestants(subject, is_quick=True)) for subject in ("drain", "enqueue-many", "wake-up")
    }

    assert found == {
        "drain": ["pgqueuer", "pgqueuer, at most 10", "django-tasks-db"],
        "enqueue-many": ["pgqueuer"],
        "wake-up": ["pgqueuer", "django-tasks-db"],
    }


def test_the_settings_contain_the_installed_version_and_the_amounts() -> None:
    _install(ONE)

    assert list(peers.settings()) == [ONE.name]
    settings = peers.settings()[ONE.name]
    assert settings.startswith("procrastinate 1.2.3, psycopg 1.2.3, Python 3.11; ")
    assert settings.endswith("; a drain of 3,000 jobs, 200 wake-ups, 20 chains")


def test_an_environment_for_other_packages_is_not_ready() -> None:
    _install(ONE)

    assert environments.is_ready(ONE)
    assert not environments.is_ready(replace(ONE, packages=(*ONE.packages, "another>=1")))


def test_a_python_that_is_too_old_or_broken_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", _interpreter(tmp_path / "own" / "python3", is_new_enough=False))
    monkeypatch.setenv("PATH", str(tmp_path / "shims"), prepend=os.pathsep)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    for name in ("python3.13", "python3.12"):
        _interpreter(tmp_path / "shims" / name, is_new_enough=False)
    _interpreter(tmp_path / "versions" / "3.13.0" / "bin" / "python", is_new_enough=False)
    wanted = _interpreter(tmp_path / "versions" / "3.12.1" / "bin" / "python", is_new_enough=True)

    assert environments.interpreter(ONE) == wanted


def test_a_peer_without_its_python_is_named_and_the_others_are_installed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(environments, "interpreter", lambda peer: None if peer.python > (3, 11) else "python")
    monkeypatch.setattr(environments, "prepare", lambda peer, interpreter: _install(peer))

    with pytest.raises(SystemExit, match=r"Not installed: django-ox\."):
        install.main()

    assert "django-ox requires Python 3.12 or newer" in capsys.readouterr().err
    assert [peer.name for peer in PEERS if not environments.is_ready(peer)] == ["django-ox"]


@pytest.mark.parametrize("name", sorted({peer.program for peer in PEERS}))
def test_a_program_has_the_required_functions(name: str) -> None:
    """The source is parsed, because its imports are installed in another environment."""
    source = Path(peers.__file__).with_name("programs") / f"{name}.py"
    functions = {node.name for node in ast.parse(source.read_text()).body if isinstance(node, ast.FunctionDef)}

    assert {"prepare", "worker", "client"} <= functions


def test_a_worker_is_stopped_with_its_child_processes() -> None:
    """The pipe is closed only when the last process that holds it has ended."""
    with _process("sleep 1000 & echo started; wait") as process, tempfile.TemporaryFile() as output:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"

        Worker(process, output).stop()

        assert process.stdout.read() == b""


def test_the_error_of_a_worker_that_has_ended_contains_its_output() -> None:
    with tempfile.TemporaryFile() as output, _process("exit 3") as process:
        output.write(b"no such table")
        process.wait()

        with pytest.raises(PeerFailed, match="no such table"):
            Worker(process, output).check()


def _process(script: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
