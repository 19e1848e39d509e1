"""Users hold locks on running jobs, time limits are short, and workers are restarted."""

import random
import signal
import time

import pytest

from django_jobchains import chains
from django_jobchains.models import DeferredWrite, FailedAttempt, Job
from tests.chaos.open_transactions import ACTIONS, users
from tests.chaos.oracle import kill, lasting, session_defaults, unstored_attempts
from tests.shop.models import Effect
from tests.support.invariants import assert_invariants
from tests.support.waiting import until
from tests.support.worker_app import jobs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
    pytest.mark.timeout(lasting(0) + 180),
]

OPTIONS = ("--slots", "4", "--shutdown-timeout", "5")
#: Shorter than users hold locks, but no worker may lose a lease because the machine is busy.
LEASE_SECONDS = "4"


def enqueue_some():
    """Enqueue jobs of which some run long enough for users to lock them."""
    chains.enqueue_many([jobs.attempt.item(0.4 if number % 4 == 0 else 0.01) for number in range(40)])
    firsts = chains.enqueue_many([jobs.first.item(3) for _ in range(4)])
    chains.enqueue_many([jobs.after.item(None, blockers=[chain]) for chain in firsts])


def keep_busy(
    processes,
    seconds,
    restart=None,
    is_enough=lambda: True,
):
    end = time.monotonic() + seconds
    while time.monotonic() < end or not is_enough():
        if Job.objects.incomplete().count() < 200:
            enqueue_some()
        time.sleep(0.3)
        if restart is not None:
            restart()
        assert all(process.is_alive for process in processes)


def until_all_ended(processes):
    """Wait until no job and no deferred write of a worker is left."""
    stored = DeferredWrite.objects.exclude(kind="lease")

    def left():
        rows = Job.objects.incomplete().values_list("type_name", "status", "attempt", "crashes", "last_error")[:10]
        return list(rows), list(stored.values()), [process.output[-3_000:] for process in processes]

    until(lambda: not Job.objects.incomplete().exists() and not stored.exists(), 90, left)


def assert_nothing_ran_twice(cancelled=(), killed=()):
    """Check that handlers that returned were not called again, and that there are no wrong failures or crashes.

    ``cancelled``: the chains that users have cancelled. ``killed``: the attempts that were killed with their worker,
    before it had stored how they ended.
    """
    assert_invariants(cancelled=cancelled)
    crashes = {(row.job_id, row.lease_number): row for row in FailedAttempt.objects.filter(kind="crash")}
    not_killed = [vars(row) for key, row in crashes.items() if key not in killed]
    assert not not_killed, not_killed
    crashed = {job_id for job_id, _ in crashes}
    undisturbed = Job.objects.filter(type_name="chaos.attempt").exclude(id__in=crashed)
    assert set(undisturbed.values_list("status", "attempt")) <= {("completed", 1), ("cancelled", 0)}
    effects = Effect.objects.filter(job_id__in=undisturbed.values("id")).count()
    assert effects == undisturbed.filter(status="completed").count()


def has_each_held_a_lock(acting):
    return acting.held.keys() == {action.__name__ for action in ACTIONS} and bool(acting.cancelled)


def test_locks_on_running_jobs_delay_only_these(start_process):
    enqueue_some()
    processes = [start_process(*OPTIONS, LEASE_SECONDS=LEASE_SECONDS).until_ready() for _ in range(2)]
    with users() as acting:
        keep_busy(processes, lasting(8), is_enough=lambda: has_each_held_a_lock(acting))
    until_all_ended(processes)
    assert_nothing_ran_twice(acting.cancelled)
    assert not FailedAttempt.objects.exclude(job__chain_id__in=acting.cancelled).exists()


def test_short_time_limits_fail_only_the_attempts_that_reach_them(start_process):
    """Time limits that locks reach, and that statements of busy workers may reach."""
    with session_defaults(lock_timeout="100ms", statement_timeout="1s"):
        enqueue_some()
        processes = [start_process(*OPTIONS, LEASE_SECONDS=LEASE_SECONDS).until_ready() for _ in range(2)]
        with users() as acting:
            keep_busy(processes, lasting(8), is_enough=lambda: has_each_held_a_lock(acting))
        until_all_ended(processes)
    assert_nothing_ran_twice(acting.cancelled)


def test_workers_restarted_meanwhile_run_nothing_twice(start_process):
    chance = random.Random(7)
    enqueue_some()
    processes = [start_process(*OPTIONS, LEASE_SECONDS=LEASE_SECONDS).until_ready() for _ in range(2)]

    def restart():
        if chance.random() < 0.5:
            return
        old = processes.pop(0)
        old.signal(signal.SIGTERM)
        processes.append(start_process(*OPTIONS, LEASE_SECONDS=LEASE_SECONDS).until_ready())
        assert old.wait() == 0
        until(lambda: not unstored_attempts(old), 15, lambda: (unstored_attempts(old), old.output))

    with users() as acting, session_defaults(lock_timeout="200ms", statement_timeout="2s"):
        keep_busy(processes, lasting(12), restart)
    until_all_ended(processes)
    assert_nothing_ran_twice(acting.cancelled)


def test_workers_killed_meanwhile_lose_nothing_and_repeat_only_what_was_not_stored(start_process):
    """Some are killed while they work, and some while they stop and store what locks prevent them from writing."""
    chance = random.Random(11)
    enqueue_some()
    processes = [start_process(*OPTIONS, LEASE_SECONDS=LEASE_SECONDS).until_ready() for _ in range(2)]
    killed = set()

    def restart():
        old = processes.pop(0)
        if chance.random() < 0.5:
            old.signal(signal.SIGTERM)
            time.sleep(chance.random())
        killed.update(kill(old))
        processes.append(start_process(*OPTIONS, LEASE_SECONDS=LEASE_SECONDS).until_ready())

    with users() as acting:
        keep_busy(processes, lasting(12), restart)
    until_all_ended(processes)
    assert killed
    assert_nothing_ran_twice(acting.cancelled, killed)
