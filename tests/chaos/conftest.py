from tests.support.worker_processes import start_process

__all__ = ("start_process",)
