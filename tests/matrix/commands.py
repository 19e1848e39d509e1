"""Run a command in the repository's root."""

import os
import shlex
import subprocess
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TextIO

from tests.matrix import ROOT, Failed, Unavailable


class Output(threading.local):
    """Where this thread's output goes: to a file while there is one."""

    file: TextIO | None = None

    def say(self, text: str) -> None:
        print(text, file=self.file, flush=True)


output = Output()
_running: set[subprocess.Popen[bytes]] = set()


def end_all() -> None:
    """Ends what ``run`` waits for, on whichever thread."""
    for process in list(_running):
        process.terminate()


def run(*command: str, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> None:
    """Show the command and its output; ``Failed`` if it exits with anything but 0."""
    output.say(f"$ {' '.join(f'{name}={value}' for name, value in (env or {}).items())} {shlex.join(command)}")
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=output.file,
        stderr=subprocess.STDOUT if output.file else None,
    )
    _running.add(process)
    code = process.wait()
    _running.discard(process)
    if code:
        raise Failed(f"{shlex.join(command[:4])} … exited with {code}", code)


def fetch(*command: str, cwd: Path = ROOT) -> str:
    """The output of a command that gets something from outside; ``Unavailable`` if it cannot."""
    try:
        done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except FileNotFoundError as error:
        raise Unavailable(f"There is no {command[0]} on this machine.") from error
    if done.returncode:
        raise Unavailable(f"{shlex.join(command)} exited with {done.returncode}:\n{done.stderr.strip()}")
    return done.stdout.strip()
