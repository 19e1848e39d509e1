"""Users whose transactions hold locks on running jobs, some of them for longer than the leases of these jobs."""

import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial

from django.db import OperationalError, connection, connections, transaction

from django_jobchains import chains
from django_jobchains.models import Job
from django_jobchains.store.errors import is_conflict, sqlstate
from tests.support.waiting import until
from tests.support.worker_app import jobs

#: How long a transaction stays open with its lock. The leases of the jobs are shorter than the longest.
HELD_SECONDS = (0.2, 5.0)
#: The SQLSTATEs of errors that short limits of the database may cause in users' statements: the lock timeout and the
#: statement timeout.
LIMITS = ("55P03", "57014")


def lock(job, chance):
    mode = chance.choice(["FOR UPDATE", "FOR SHARE"])
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT status FROM django_jobchains_job WHERE id = %s {mode} SKIP LOCKED", [job.id])
        return bool(cursor.fetchone() == ("running",))


def cancel(job, chance):
    return bool(chains.cancel(job.chain_id)) and is_running(job)


def retry(job, chance):
    chains.retry(job.id)
    return is_running(job)


def wait_for(job, chance):
    jobs.after.enqueue(None, blockers=[job.chain_id])
    return is_running(job)


def complete(job, chance):
    """Change nothing."""
    with chains.current_job(job.chain_id) as current:
        return current.job.id == job.id and current.job.status == "running"


def complete_and_roll_back(job, chance):
    with chains.current_job(job.chain_id) as current:
        if current.job.id != job.id or current.job.status != "running":
            return False
        current.finish()
    return True


def is_running(job):
    return Job.objects.filter(id=job.id, lease_number=job.lease_number, status="running").exists()


#: What users do with a running job, or its chain. Each returns whether the job was still running.
ACTIONS = (lock, cancel, retry, wait_for, complete, complete_and_roll_back)


class Users:
    """Each action begins a transaction, acts on a running job, waits, and commits or rolls back."""

    def __init__(self):
        #: How many transactions of each action found the job still running.
        self.held = Counter()
        #: The chains whose cancellation was committed.
        self.cancelled = set()

    def act(self, action, chance, wait):
        running = list(Job.objects.filter(status="running")[:20])
        if not running:
            return
        job = chance.choice(running)
        is_undone = action is complete_and_roll_back or chance.random() < 0.5
        with transaction.atomic():
            is_held = action(job, chance)
            if is_held:
                wait(chance.choice(HELD_SECONDS))
            transaction.set_rollback(is_undone)
        self.held[action.__name__] += is_held
        if action is cancel and not is_undone:
            self.cancelled.add(job.chain_id)


@contextmanager
def users():
    """Let a user for each of ``ACTIONS`` act while the block runs."""
    acting = Users()
    with ExitStack() as stack:
        for number, action in enumerate(ACTIONS):
            stack.enter_context(repeating(partial(acting.act, action, random.Random(number)), 0.02))
        yield acting


@contextmanager
def repeating(action, pause_seconds, lock_timeout=None):
    """Repeat ``action(wait)`` on another thread while the block runs. It may fail because of a lock or a time limit.

    ``wait``: waits for a number of seconds, or until the block ends.
    """
    stopping, errors = threading.Event(), []

    def run():
        try:
            if lock_timeout:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT set_config('lock_timeout', %s, false)", [lock_timeout])
            while not stopping.wait(pause_seconds):
                try:
                    action(stopping.wait)
                except OperationalError as error:
                    if not is_conflict(error) and sqlstate(error) not in LIMITS:
                        raise
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(30)
    assert not thread.is_alive()
    assert not errors


@contextmanager
def transaction_that_locks(*locked):
    """Keep a transaction open while the block runs. It may complete these chains."""
    is_open, may_end = threading.Event(), threading.Event()

    def hold():
        try:
            with transaction.atomic():
                for chain in locked:
                    with chains.current_job(chain):
                        pass
                is_open.set()
                may_end.wait()
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(hold)
        try:
            until(lambda: is_open.is_set() or held.done(), what=held)
            yield
        finally:
            may_end.set()
        held.result()
