"""Faults of a worker process, where the harness asks for one. It is imported only then, which takes half a second."""

import os


def may_die(point):
    """End the process here, as if it was killed, if it was started with this fault."""
    if os.environ.get("DUE_WORK_FAULT") == point:
        from due_work_harness.process_histories import die_here

        die_here(point)


def may_fail(point):
    """Raise an error here if the process was started with this fault."""
    if os.environ.get("DUE_WORK_FAULT") == point:
        from due_work_harness.process_histories import fault_fires

        if fault_fires(point):
            raise RuntimeError(f"{point}, as the test has asked for.")
