"""Users whose transactions hold locks on running jobs, some of them for longer than the leases of these jobs."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from uuid import UUID

from django.db import OperationalError, connection, connections, transaction

from django_jobchains import chains
from django_jobchains.models import Chain, Job
from django_jobchains.store.errors import sqlstate
from tests.support.waiting import until
from tests.support.worker_app import jobs

#: How long a transaction stays open with its lock. The leases of the jobs are shorter than the longest.
HELD_SECONDS = (0.2, 5.0)
#: The SQLSTATEs of errors that short limits of the database may cause in users' statements: the lock timeout and the
#: statement timeout.
LIMITS = ("55P03", "57014")


def lock(job: Job, chance: random.Random) -> bool:
    mode = chance.choice(["FOR UPDATE", "FOR SHARE"])
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT status FROM django_jobchains_job WHERE id = %s {mode} SKIP LOCKED", [job.id])
        return bool(cursor.fetchone() == ("running",))


def cancel(job: Job, chance: random.Random) -> bool:
    return bool(chains.cancel(job.chain_id)) and is_running(job)


def retry(job: Job, chance: random.Random) -> bool:
    chains.retry(job.id)
    return is_running(job)


def wait_for(job: Job, chance: random.Random) -> bool:
    jobs.after.enqueue(None, blockers=[job.chain_id])
    return is_running(job)


def complete(job: Job, chance: random.Random) -> bool:
    """Change nothing."""
    with chains.current_job(job.chain_id) as current:
        return current.job.id == job.id and current.job.status == "running"


def complete_and_roll_back(job: Job, chance: random.Random) -> bool:
    with chains.current_job(job.chain_id) as current:
        if current.job.id != job.id or current.job.status != "running":
            return False
        current.finish()
    return True


def is_running(job: Job) -> bool:
    return Job.objects.filter(id=job.id, lease_number=job.lease_number, status="running").exists()


#: What users do with a running job, or its chain. Each action returns whether the job was still running.
Action = Callable[[Job, random.Random], bool]
ACTIONS: tuple[Action, ...] = (lock, cancel, retry, wait_for, complete, complete_and_roll_back)


class Users:
    """A thread for each action. It begins a transaction, acts on a running job, waits, and commits or rolls back."""

    def __init__(self, actions: tuple[Action, ...]) -> None:
        self._threads = [
            threading.Thread(target=self._run, args=(action, number), name=f"user-{action.__name__}")
            for number, action in enumerate(actions)
        ]
        self._stopping = threading.Event()
        self._errors: list[BaseException] = []
        #: How many transactions of each action found the job still running.
        self.held: Counter[str] = Counter()
        #: The chains whose cancellation was committed.
        self.cancelled: set[UUID] = set()

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self._threads)
        assert not self._errors, self._errors

    def _run(self, action: Action, seed: int) -> None:
        chance = random.Random(seed)
        try:
            while not self._stopping.is_set():
                self._act_within_limits(action, chance)
                self._stopping.wait(0.02)
        except BaseException as error:
            self._errors.append(error)
        finally:
            connections.close_all()

    def _act_within_limits(self, action: Action, chance: random.Random) -> None:
        try:
            self._act(action, chance)
        except OperationalError as error:
            if sqlstate(error) not in LIMITS:
                raise

    def _act(self, action: Action, chance: random.Random) -> None:
        running = list(Job.objects.filter(status="running")[:20])
        if not running:
            return
        job = chance.choice(running)
        is_undone = action is complete_and_roll_back or chance.random() < 0.5
        with transaction.atomic():
            is_held = action(job, chance)
            if is_held:
                self._stopping.wait(chance.choice(HELD_SECONDS))
            transaction.set_rollback(is_undone)
        self.held[action.__name__] += is_held
        if action is cancel and not is_undone:
            self.cancelled.add(job.chain_id)


@contextmanager
def users(*actions: Action) -> Iterator[Users]:
    """Let users act while the block runs: one user for each of these actions, by default for each of ``ACTIONS``."""
    acting = Users(actions or ACTIONS)
    with ExitStack() as stack:
        stack.callback(acting.stop)
        acting.start()
        yield acting


@contextmanager
def transaction_that_locks(*locked: Chain) -> Iterator[None]:
    """Keep a transaction open while the block runs. It may complete these chains."""
    is_open, may_end = threading.Event(), threading.Event()

    def hold() -> None:
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
