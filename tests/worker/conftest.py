from tests.support.worker_processes import heeded_hang_ups
from tests.support.worker_processes import start_patient_process as start_process
from tests.support.workers import (
    events,
    make_worker,
    patient_stop,
    processors,
    registry,
    short_lease,
    start_worker,
    store,
)

__all__ = (
    "events",
    "heeded_hang_ups",
    "make_worker",
    "patient_stop",
    "processors",
    "registry",
    "short_lease",
    "start_process",
    "start_worker",
    "store",
)
