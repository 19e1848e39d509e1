"""``manage.py jobchains`` as a process: exit codes, pipes, and the state of the terminal afterwards."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.chains import completed, failed, running, ship
from tests.support.connections import committing

COMMAND = [sys.executable, "-W", "error", "-m", "django", "jobchains"]
#: Processes start slowly on a busy machine.
DEADLINE_SECONDS = 120

pytestmark = [committing, pytest.mark.slow, pytest.mark.timeout(5 * DEADLINE_SECONDS)]


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.settings")
    monkeypatch.setenv("TERM", "xterm-256color")


def run(*words, stdin=""):
    command = [*COMMAND, *map(str, words)]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=DEADLINE_SECONDS)


def test_exit_codes_are_0_for_success_1_for_failure_and_2_for_usage(store):
    chain = failed(store)
    retried = run("retry", "-", stdin=f"{chain.id}\n")
    assert (retried.returncode, retried.stdout, retried.stderr) == (0, "1 job retried.\n", "")
    again = run("retry", chain.id)
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr == "CommandError: Nothing retried: only failed and cancelled jobs can be retried.\n"
    wrong = run("retry", "4711")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.splitlines()[-1].endswith("give the complete UUID of a chain or job, as 'list' shows it")


def test_a_closed_pipe_causes_no_traceback(store):
    completed(store)
    command = [*COMMAND, "top", "--interval", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.readline()
        process.stdout.close()
        assert (process.wait(DEADLINE_SECONDS), process.stderr.read()) == (0, b"")


class OnTerminal:
    """A command that runs on a terminal, and its output."""

    def __init__(self, leader, process):
        self.leader = leader
        self.process = process
        self.written = b""

    def until(self, is_enough):
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not is_enough():
            assert time.monotonic() < deadline, self.written
            self._read(seconds=0.05)

    def end(self):
        self.until(lambda: self.process.poll() is not None)
        while self._read(seconds=0):
            pass
        return self.process.wait()

    def _read(self, seconds):
        if not select.select([self.leader], [], [], seconds)[0]:
            return b""
        with suppress(OSError):  # the other end is closed
            read = os.read(self.leader, 65_536)
            self.written += read
            return read
        return b""


@contextmanager
def on_terminal(columns, *words):
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))

    def take_terminal():
        os.setsid()
        fcntl.ioctl(follower, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        [*COMMAND, *words], stdin=follower, stdout=follower, stderr=follower, preexec_fn=take_terminal
    )
    os.close(follower)
    try:
        yield OnTerminal(leader, process)
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def test_a_terminal_has_colors_and_lines_that_fit(store):
    chain = failed(store)
    with on_terminal(64, "list") as terminal:
        assert terminal.end() == 0
    text = terminal.written.decode()
    assert str(chain.id) in text
    assert re.search(r"\x1b\[(31;1|1;31)mfailed\x1b\[0m", text)
    assert max(len(line) for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).splitlines()) <= 64


def test_top_is_updated_and_restores_the_terminal(store):
    chain = running(store)
    with on_terminal(100, "top", "--interval", "0.1") as terminal:
        terminal.until(lambda: str(chain.id).encode() in terminal.written)
        ship.enqueue()  # a type that the other process does not declare
        terminal.until(lambda: b"1 job due" in terminal.written)
        os.write(terminal.leader, b"\x03")  # Ctrl-C
        assert terminal.end() == 0
    written = terminal.written
    assert written.startswith(b"\x1b[?1049h")
    assert written.rindex(b"\x1b[?1049l") > written.rindex(b"\x1b[?1049h")
    assert written.rindex(b"\x1b[?25h") > written.rindex(b"\x1b[?25l")
    assert b"Traceback" not in written
