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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.support.chains import completed, failed, running, ship
from tests.support.connections import committing

COMMAND = [sys.executable, "-W", "error", "-m", "django", "jobchains"]
#: Processes start slowly on a busy machine.
DEADLINE_SECONDS = 120

pytestmark = [committing, pytest.mark.slow, pytest.mark.timeout(5 * DEADLINE_SECONDS)]


def environment() -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {
        **{name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")},
        "PYTHONPATH": root,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "TERM": "xterm-256color",
    }


def run(*words: object, stdin: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*COMMAND, *map(str, words)],
        env=environment(),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


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
    assert run("list", "--limit", "100001").returncode == 2


def test_a_closed_pipe_causes_no_traceback(store):
    completed(store)
    with subprocess.Popen(
        [*COMMAND, "top", "--interval", "0"], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(DEADLINE_SECONDS) == 0
        assert process.stderr.read() == b""


class OnTerminal:
    """A command that runs on a terminal, and its output."""

    def __init__(self, leader: int, process: "subprocess.Popen[bytes]") -> None:
        self._leader = leader
        self.process = process
        self.written = b""

    def until(self, text: bytes) -> None:
        self._read(lambda: text in self.written, f"{text!r}")

    def end(self) -> int:
        self._read(lambda: self.process.poll() is not None, "the end of the process")
        self._read_rest()
        return self.process.wait(DEADLINE_SECONDS)

    def press_ctrl_c(self) -> None:
        os.write(self._leader, b"\x03")

    def _read(self, is_enough: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not is_enough():
            assert time.monotonic() < deadline, f"{what} did not come: {self.written!r}"
            self._read_some(seconds=0.05)

    def _read_rest(self) -> None:
        """Read what the process had written before it ended."""
        while self._read_some(seconds=0):
            pass

    def _read_some(self, seconds: float) -> bool:
        if not select.select([self._leader], [], [], seconds)[0]:
            return False
        with suppress(OSError):  # the other end is closed
            read = os.read(self._leader, 65_536)
            self.written += read
            return bool(read)
        return False


@contextmanager
def on_terminal(columns: int, *words: str) -> Iterator[OnTerminal]:
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [*COMMAND, *words], env=environment(), stdin=follower, stdout=follower, stderr=follower,
        preexec_fn=lambda: _take_terminal(follower), close_fds=True,
    )  # fmt: skip
    os.close(follower)
    try:
        yield OnTerminal(leader, process)
    finally:
        process.kill()
        process.wait()
        os.close(leader)


def _take_terminal(follower: int) -> None:
    os.setsid()
    fcntl.ioctl(follower, termios.TIOCSCTTY, 0)


def test_a_terminal_has_colors_and_lines_that_fit(store):
    chain = failed(store)
    with on_terminal(64, "list") as terminal:
        assert terminal.end() == 0
    text = terminal.written.decode()
    assert str(chain.id) in text
    assert re.search(r"\x1b\[(31;1|1;31)mfailed\x1b\[0m", text)
    assert max(len(line) for line in _plain(text).splitlines()) <= 64


def test_top_is_updated_and_restores_the_terminal(store):
    chain = running(store)
    with on_terminal(100, "top", "--interval", "0.1") as terminal:
        terminal.until(str(chain.id).encode())
        ship.enqueue()  # a type that the other process does not declare
        terminal.until(b"1 job due")
        terminal.press_ctrl_c()
        assert terminal.end() == 0
    written = terminal.written
    assert written.startswith(b"\x1b[?1049h")
    assert written.rindex(b"\x1b[?1049l") > written.rindex(b"\x1b[?1049h")
    assert written.rindex(b"\x1b[?25h") > written.rindex(b"\x1b[?25l")
    assert b"Traceback" not in written


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
