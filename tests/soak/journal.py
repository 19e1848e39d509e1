"""Append-only journals of JSON lines: a file for each process, in the folder that ``SOAK_JOURNAL`` names.

A line is written by one call of the operating system, so a process that is killed has written it or not. All processes
run on one machine, and so have one clock.
"""

import json
import os
import time
from functools import cache
from pathlib import Path


def write(what, **facts):
    pid = os.getpid()
    line = json.dumps({"what": what, "at": time.time(), "pid": pid, **facts}, separators=(",", ":"))
    os.write(_descriptor(pid), line.encode() + b"\n")


@cache
def _descriptor(pid):
    """Open the file of this process. A child process that was forked opens another one."""
    path = Path(os.environ["SOAK_JOURNAL"]) / f"{pid}-{time.time_ns()}"
    return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)


def read(folder):
    """Return the lines of all processes, in the order of their times."""
    lines = [json.loads(line) for path in folder.iterdir() for line in path.read_text().splitlines()]
    return sorted(lines, key=lambda line: line["at"])
