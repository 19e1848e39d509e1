"""Jobs of the soak test. The fault that their input names happens only in their first attempt."""

import os
import signal
import time

from django_jobchains.isolation import Isolation
from django_jobchains.processors import Processors, RunningJob
from tests.isolation.app.slices import AT_ONCE, note

SOAKED = Isolation("process", key="soak", max_workers=4, max_jobs_per_worker=200, memory_limit="1G", grace_seconds=0.4)

processors = Processors(backoff=AT_ONCE, isolation=SOAKED, lease=6, timeout=6)


@processors.register("isolation.soak")
def soak(job: RunningJob[str]) -> None:
    if job.attempt == 1:
        _misbehave(job.input)
    with job.complete():
        note(job, "written")


def _misbehave(how: str) -> None:
    if how == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    elif how == "hang":
        time.sleep(300)
    elif how == "memory":
        bytearray(4 * 1024**3)
