"""Jobs that crash, hang and leak. Most do so in their first attempt only."""

import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.db import transaction

from django_jobchains.children.call_loop import running_call
from django_jobchains.children.frames import encode_frame
from django_jobchains.isolation import Isolation
from django_jobchains.processors import Batch, Processors, RunningJob
from django_jobchains.testing.contracts.concurrency import until
from tests.children.functions import write_to_socket
from tests.isolation.app.slices import AFTER_LOG_LINES, AT_ONCE, note

HANGING = Isolation("process", key="hanging", grace_seconds=0.4, max_workers=4)

processors = Processors(backoff=AT_ONCE)
hanging = Processors(backoff=AT_ONCE, isolation=HANGING)


@processors.register("isolation.good")
def good(job: RunningJob[float]) -> int:
    time.sleep(job.input)
    with job.complete():
        note(job, "written")
        return os.getpid()


@processors.register("isolation.logs_and_dies", backoff=AFTER_LOG_LINES)
def logs_and_dies(job: RunningJob[Any]) -> None:
    job.log("about to die")
    os.kill(os.getpid(), signal.SIGKILL)


@processors.register("isolation.dies")
def dies(job: RunningJob[str]) -> int:
    """Die in the first attempt, in the way that the input names."""
    if job.attempt == 1:
        print("the last words", file=sys.stderr, flush=True)
        _die(job.input)
    return job.attempt


@processors.register("isolation.writes_to_its_socket", max_attempts=1)
def writes_to_its_socket(job: RunningJob[str]) -> None:
    """Write the bytes that the input names, or a message that means nothing to the worker."""
    note(job, "called")
    nonsense = encode_frame({"id": running_call.get().id, "message": {"nonsense": 1}})
    write_to_socket(job.input or nonsense.hex())


@processors.register(
    "isolation.says_too_much", max_attempts=1, isolation=Isolation("process", key="terse", message_limit=1000)
)
def says_too_much(job: RunningJob[Any]) -> str:
    note(job, "called")
    return "x" * 2000


@processors.register("isolation.dies_after_commit")
def dies_after_commit(job: RunningJob[Any]) -> str:
    with job.complete():
        note(job, "written")
        transaction.on_commit(lambda: os._exit(5))
    return "committed"


@processors.register("isolation.waits_after_commit")
def waits_after_commit(job: RunningJob[str]) -> str:
    """Commit, and end when a file exists."""
    with job.complete():
        note(job, "written")
        transaction.on_commit(lambda: until(Path(job.input).exists, 120))
    return "committed"


@processors.register("isolation.waits_if_asked", isolation=Isolation("process", key="pair", max_workers=2))
def waits_if_asked(job: RunningJob[str]) -> None:
    """Return at once, or when the file in the input exists."""
    if job.input:
        note(job, "started")
        until(Path(job.input).exists, 120)


@processors.register("isolation.batch_dies", batch_limit=3)
def batch_dies(jobs: Batch[Any]) -> None:
    if jobs[0].attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


@processors.register("isolation.allocates", isolation=Isolation("process", key="small", memory_limit="1G"))
def allocates(job: RunningJob[Any]) -> int:
    if job.attempt == 1:
        bytearray(4 * 1024**3)
    return job.attempt


@processors.register("isolation.grandchild")
def grandchild(job: RunningJob[Any]) -> None:
    """Start a child process, and wait for it."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    note(job, f"child {os.getpid()}")
    note(job, f"grandchild {process.pid}")
    process.wait()


@hanging.register("isolation.hangs", timeout=0.3)
def hangs(job: RunningJob[str]) -> int:
    """Ignore every request to stop in the first attempt."""
    if job.attempt == 1:
        note(job, "started")
        if job.input == "deaf to SIGTERM":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(120)
    return job.attempt


@hanging.register("isolation.hangs_for_ever")
def hangs_for_ever(job: RunningJob[Any]) -> None:
    note(job, f"started {os.getpid()}")
    time.sleep(120)


@hanging.register("isolation.limited", isolation=replace(HANGING, key="limited", max_workers=1), timeout=2)
def limited(job: RunningJob[Any]) -> int:
    return os.getpid()


@hanging.register(
    "isolation.metered",
    isolation=Isolation("process", key="metered", max_workers=1, max_jobs_per_worker=5, cpu_seconds=1),
)
def metered(job: RunningJob[str]) -> int:
    """Use CPU time without end in the first attempt, if asked to."""
    while job.input == "burn" and job.attempt == 1:
        pass
    return os.getpid()


@hanging.register("isolation.hogs", lease=4)
def hogs(job: RunningJob[Any]) -> int:
    """Hold the GIL for longer than the lease."""
    end = time.monotonic() + 6
    while time.monotonic() < end:
        re.match(r"(a+)+$", "a" * 22 + "b")
    return job.attempt


def _die(how: str) -> None:
    if how == "SIGKILL":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "SIGSEGV":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "exit":
        os._exit(3)


#: The fault that the input names happens only in the first attempt.
SOAKED = Isolation("process", key="soak", max_workers=4, max_jobs_per_worker=200, memory_limit="1G", grace_seconds=0.4)
soaked = Processors(backoff=AT_ONCE, isolation=SOAKED, lease=6, timeout=6)


@soaked.register("isolation.soak")
def soak(job: RunningJob[str]) -> None:
    if job.attempt == 1:
        _die(job.input)
        if job.input == "hang":
            time.sleep(300)
        elif job.input == "memory":
            bytearray(4 * 1024**3)
    with job.complete():
        note(job, "written")
