from tests.support.worker_processes import heeded_hang_ups
from tests.support.worker_processes import start_patient_process as start_process

__all__ = ("heeded_hang_ups", "start_process")
