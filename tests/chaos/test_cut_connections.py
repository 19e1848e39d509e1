"""Connections that end at the worst moments: around a COMMIT, and in the middle of a message."""

import random
import signal
from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.chaos.proxy import Fate, Proxy, by_chance, proxy
from tests.support.invariants import assert_invariants
from tests.support.waiting import until
from tests.support.worker_app import jobs
from tests.support.worker_processes import StartProcess, WorkerProcess

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

__all__ = ("proxy",)

#: How long stopping may take in addition to the handlers.
EXIT_SECONDS = 15.0


def start_behind(proxy: Proxy, start_process: StartProcess, lease_seconds: str = "2") -> WorkerProcess:
    return start_process("--slots", "4", LEASE_SECONDS=lease_seconds, JOBCHAINS_TEST_DATABASE=proxy.url)


def enqueue_mixed() -> int:
    """Enqueue jobs that are completed in their own transactions and in batches. Return their final number."""
    chains.enqueue_many([jobs.write.item(0.0) for _ in range(150)])
    chains.enqueue_many([jobs.attempt.item(0.0) for _ in range(50)])
    chains.enqueue_many([jobs.first.item(3) for _ in range(10)])
    return 150 + 50 + 10 * 5


def all_completed() -> bool:
    return not Job.objects.exclude(status="completed").exists()


def until_all_completed(process: WorkerProcess, seconds: float = 60) -> None:
    def facts() -> Any:
        left = Job.objects.incomplete().values_list("type_name", "status", "attempt", "crashes", "last_error")[:5]
        return list(left), process.output[-2_000:]

    until(all_completed, seconds, facts)


def assert_ends_well(process: WorkerProcess) -> None:
    assert process.is_alive, process.output
    process.signal(signal.SIGTERM)
    assert process.wait(EXIT_SECONDS) == 0


def test_a_commit_without_a_reply_completes_the_job(proxy, start_process):
    """The job is completed, its effect exists, and it is not retried."""
    proxy.fate = by_chance(random.Random(3), 0.2, "its answer is lost")
    chains.enqueue_many([jobs.write.item(0.0) for _ in range(150)])
    process = start_behind(proxy, start_process, lease_seconds="60")
    until_all_completed(process)
    assert proxy.fates["its answer is lost"] > 10
    assert set(Job.objects.values_list("attempt", "crashes")) == {(1, 0)}
    assert "lost its lease" not in process.output
    assert not FailedAttempt.objects.exists()
    assert_invariants()
    assert_ends_well(process)


def test_a_lost_commit_leaves_only_a_failed_attempt(proxy, start_process):
    proxy.fate = by_chance(random.Random(4), 0.2, "is lost")
    chains.enqueue_many([jobs.write.item(0.0) for _ in range(150)])
    process = start_behind(proxy, start_process)
    until_all_completed(process)
    assert proxy.fates["is lost"] > 10
    assert FailedAttempt.objects.filter(kind="error").exists()
    assert_invariants()
    assert_ends_well(process)


def test_lost_commits_and_lost_replies_duplicate_nothing(proxy, start_process):
    chance = random.Random(5)
    fates: list[Fate] = ["is lost", "its answer is lost", *["passes"] * 6]
    proxy.fate = lambda: chance.choice(fates)
    count = enqueue_mixed()
    process = start_behind(proxy, start_process)
    until_all_completed(process)
    assert min(proxy.fates.values()) > 10
    assert Job.objects.count() == count
    assert_invariants()
    assert_ends_well(process)


def test_connections_that_end_in_the_middle_of_a_message_lose_and_duplicate_nothing(proxy, start_process):
    chance = random.Random(6)
    lifetimes: list[int] = []

    def lifetime() -> int:
        lifetimes.append(chance.randrange(1_000, 50_000))
        return lifetimes[-1]

    proxy.lifetime = lifetime
    count = enqueue_mixed()
    process = start_behind(proxy, start_process)
    until_all_completed(process)
    assert len(lifetimes) > 15
    assert Job.objects.count() == count
    assert_invariants()
    assert_ends_well(process)
