from tests.support.worker_processes import start_patient_process as start_process

__all__ = ("start_process",)
