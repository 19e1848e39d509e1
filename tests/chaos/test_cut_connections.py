"""Connections that end at the worst moments: around a COMMIT, and in the middle of a message."""

import random

import pytest

from django_jobchains import chains
from django_jobchains.models import FailedAttempt, Job
from tests.chaos.oracle import assert_ends_well, until_all_completed, write_and_attempt
from tests.chaos.proxy import proxy
from tests.support.invariants import assert_invariants
from tests.support.worker_app import jobs

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.django_db(transaction=True)]

__all__ = ("proxy",)


@pytest.fixture
def drain(proxy, start_process):
    """Let a worker behind the proxy run many jobs. Return the worker."""

    def drain(lease_seconds="2"):
        write_and_attempt(150, 50)
        chains.enqueue_many([jobs.first.item(3) for _ in range(10)])
        process = start_process("--slots", "4", LEASE_SECONDS=lease_seconds, JOBCHAINS_TEST_DATABASE=proxy.url)
        until_all_completed(process)
        assert Job.objects.count() == 150 + 50 + 10 * 5
        assert_invariants()
        assert_ends_well(process)
        return process

    return drain


def by_chance(seed, *fates):
    """Choose what happens to each COMMIT: mostly it passes."""
    chance = random.Random(seed)
    return lambda: chance.choice([*fates, *["passes"] * 3 * len(fates)])


def test_a_commit_without_a_reply_completes_the_job(proxy, drain):
    """The job is completed, its effect exists, and it is not retried."""
    proxy.fate = by_chance(3, "its answer is lost")
    process = drain(lease_seconds="60")
    assert proxy.fates["its answer is lost"] > 10
    assert set(Job.objects.filter(type_name="chaos.write").values_list("attempt", "crashes")) == {(1, 0)}
    assert "lost its lease" not in process.output
    assert not FailedAttempt.objects.filter(job__type_name="chaos.write").exists()


def test_lost_commits_leave_only_failed_attempts(proxy, drain):
    proxy.fate = by_chance(4, "is lost")
    drain()
    assert proxy.fates["is lost"] > 10
    assert FailedAttempt.objects.filter(kind="error").exists()


def test_lost_commits_and_lost_replies_duplicate_nothing(proxy, drain):
    proxy.fate = by_chance(5, "is lost", "its answer is lost")
    drain()
    assert min(proxy.fates.values()) > 10


def test_connections_that_end_in_the_middle_of_a_message_lose_and_duplicate_nothing(proxy, drain):
    chance, lifetimes = random.Random(6), []

    def lifetime():
        lifetimes.append(chance.randrange(1_000, 50_000))
        return lifetimes[-1]

    proxy.lifetime = lifetime
    drain()
    assert len(lifetimes) > 15
