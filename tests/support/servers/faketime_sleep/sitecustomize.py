"""Replaces ``time.sleep`` in processes with a wrong clock.

libfaketime 0.9.10 passes a wrong time to the system call behind it, which fails with EINVAL.
"""

import threading
import time


def sleep(seconds):
    threading.Event().wait(seconds)


time.sleep = sleep
