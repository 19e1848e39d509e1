"""A claim finds exactly the due jobs of the given types and queues, whatever else is pending."""

from collections.abc import Sequence
from random import Random
from uuid import UUID

import pytest
from django.db import transaction

from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.support.jobs import new_job

pytestmark = pytest.mark.django_db

#: Names that databases sort differently.
NAMES = ("", "B", "a", "a b", "a-b", "a.b", "a_b", "ab", "b", "é", "z", "~")
PRIORITIES = (-32_768, -1, 0, 32_767)


@pytest.mark.parametrize("seed", range(4))
def test_claim_finds_the_jobs_of_the_given_types_and_queues(store: Store, seed: int) -> None:
    random = Random(seed)
    present = random.sample(NAMES[1:], random.randint(1, 6)), random.sample(NAMES[1:], random.randint(1, 6))
    store.jobs.create([new_job(type_name, **group) for type_name, group in _groups(random, *present)])
    for _ in range(12):
        types = random.sample(NAMES, random.randint(1, 6))
        queues = random.choice([None, random.sample(NAMES, random.randint(0, 6))])
        excluded = random.sample(NAMES, random.choice([0, 0, 1, 4]))
        assert _claimed(store, types, queues, excluded) == _expected(types, queues, excluded)


def _groups(random: Random, types: Sequence[str], queues: Sequence[str]) -> list[tuple[str, dict[str, object]]]:
    """Choose random combinations of type, queue and priority. They may repeat."""
    every = [(name, {"queue": queue, "priority": n}) for name in types for queue in queues for n in PRIORITIES]
    return random.choices(every, k=random.randint(1, 30))


def _claimed(
    store: Store, types: Sequence[str], queues: Sequence[str] | None, excluded: Sequence[str]
) -> tuple[set[UUID], bool]:
    """Return the claimed ids, and whether a job was due. The claim is rolled back."""
    leases = dict.fromkeys(types, 60.0)
    is_due = store.jobs.next_due(leases, queues, excluded) is not None
    with transaction.atomic():
        jobs = store.jobs.claim("worker", 1_000, leases, queues, excluded)
        transaction.set_rollback(True)
    return {job.id for job in jobs}, is_due


def _expected(types: Sequence[str], queues: Sequence[str] | None, excluded: Sequence[str]) -> tuple[set[UUID], bool]:
    jobs = Job.objects.filter(type_name__in=types).exclude(queue__in=excluded)
    ids = set((jobs if queues is None else jobs.filter(queue__in=queues)).values_list("id", flat=True))
    return ids, bool(ids)
