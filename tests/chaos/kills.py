"""Kill a worker, and find out which attempts ended with it."""

import psutil
from django.db import connection

from django_jobchains.models import DeferredWrite, Job
from django_jobchains.store.rows import AttemptKey
from tests.support.waiting import until
from tests.support.worker_processes import WorkerProcess


def kill(process: WorkerProcess) -> set[AttemptKey]:
    """Kill a worker; return the attempts that it had, except those whose outcomes it had written or stored.

    Its last statements may take effect after it was stopped, so its attempts are read before and after that.
    """
    try:
        process.freeze()
    except ChildProcessError:  # it has ended
        return set()
    ports = [used.laddr.port for used in psutil.Process(process.pid).net_connections("tcp")]
    attempts = unstored_attempts(process)
    process.kill()
    until(lambda: not is_a_statement_under_way(ports))
    return attempts | unstored_attempts(process)


def unstored_attempts(process: WorkerProcess) -> set[AttemptKey]:
    """Return the attempts of a worker whose outcomes are neither written nor stored."""
    running = Job.objects.filter(status="running", leased_by__contains=f":{process.pid}:")
    attempts = set(running.values_list("id", "lease_number"))
    stored = DeferredWrite.objects.filter(kind="outcome").values_list("job_id", "lease_number")
    return attempts - set(stored)


def is_a_statement_under_way(ports: list[int]) -> bool:
    """Return whether sessions of these ports execute a statement.

    Sessions that wait for a lock do not count, because they end when they get it.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT 1 FROM pg_stat_activity WHERE client_port = ANY(%s) AND state = 'active' "
            "AND wait_event_type IS DISTINCT FROM 'Lock'",
            [ports],
        )
        return cursor.fetchone() is not None
