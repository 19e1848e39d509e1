"""Tools for tests of code that enqueues chains: run due jobs without a worker, check enqueued jobs, advance the clock.

They work inside a plain ``TestCase``, on its connection and in its transaction. In pytest, the fixture ``jobchains`` of
this package provides them.
"""

from django_jobchains.testing.records import RecordOutcome
from django_jobchains.testing.runner import (
    Clock,
    JobOutcome,
    aassert_enqueued,
    afire_schedules,
    arun_due_jobs,
    assert_enqueued,
    clock,
    fire_schedules,
    run_due_jobs,
)

__all__ = (
    "Clock",
    "JobOutcome",
    "RecordOutcome",
    "aassert_enqueued",
    "afire_schedules",
    "arun_due_jobs",
    "assert_enqueued",
    "clock",
    "fire_schedules",
    "run_due_jobs",
)
