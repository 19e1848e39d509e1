"""What the chaos tests share: how long they last, mixed work, kills, and how a worker and its jobs end."""

import os
import signal
from contextlib import contextmanager

import psutil
from django.db import connection

from django_jobchains import chains
from django_jobchains.models import DeferredWrite, Job
from tests.support.waiting import until
from tests.support.worker_app import jobs

#: None: each test has its own duration.
SECONDS = float(os.environ["JOBCHAINS_CHAOS_SECONDS"]) if "JOBCHAINS_CHAOS_SECONDS" in os.environ else None
#: How long stopping may take in addition to its timeout: each step may wait for a database that does not respond.
EXIT_SECONDS = 15.0


def lasting(seconds):
    """Return the duration of a test in seconds: from the environment, or else this default."""
    return SECONDS or seconds


def completed(using="default"):
    return Job.objects.using(using).with_status("completed").count()


def until_count(count, process, using="default"):
    until(lambda: completed(using) >= count, 60, lambda: process.output[-3_000:])


def until_all_completed(*processes, seconds=60, using="default"):
    def facts():
        left = Job.objects.using(using).incomplete()
        columns = ("type_name", "status", "attempt", "crashes", "run_at", "last_error")
        return list(left.values_list(*columns)[:5]), [process.output[-3_000:] for process in processes]

    until(lambda: not Job.objects.using(using).exclude(status="completed").exists(), seconds, facts)


def assert_ends_well(*processes):
    for process in processes:
        assert process.is_alive, process.output
        process.signal(signal.SIGTERM)
    for process in processes:
        assert process.wait(EXIT_SECONDS) == 0


def write_and_attempt(writes, attempts, seconds=0.0, **options):
    """Enqueue jobs that are completed in their own transactions, and in batches."""
    chains.enqueue_many([jobs.write.item(seconds) for _ in range(writes)], **options)
    chains.enqueue_many([jobs.attempt.item(seconds) for _ in range(attempts)], **options)


@contextmanager
def session_defaults(**values):
    """Set defaults of the database, for sessions that begin from now on; ``values``: by the names of settings."""
    with connection.cursor() as cursor:
        name = connection.ops.quote_name(connection.settings_dict["NAME"])
        for setting, value in values.items():
            cursor.execute(f"ALTER DATABASE {name} SET {setting} = '{value}'")
        try:
            yield
        finally:
            for setting in values:
                cursor.execute(f"ALTER DATABASE {name} RESET {setting}")


def kill(process):
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


def unstored_attempts(process):
    """Return the attempts of a worker whose outcomes are neither written nor stored."""
    running = Job.objects.filter(status="running", leased_by__contains=f":{process.pid}:")
    attempts = set(running.values_list("id", "lease_number"))
    stored = DeferredWrite.objects.filter(kind="outcome").values_list("job_id", "lease_number")
    return attempts - set(stored)


def is_a_statement_under_way(ports):
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
