from tests.worker.processes import start_process

__all__ = ("start_process",)
