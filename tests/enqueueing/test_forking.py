"""After a process has enqueued and forked, parent and child can both enqueue."""

from uuid import UUID

import pytest

from django_jobchains import chains
from django_jobchains.models import Chain
from tests.support.attempts import committed
from tests.support.forks import Child
from tests.support.worker_app import jobs

pytestmark = [committed, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


def enqueue_one():
    return str(jobs.nothing.enqueue({"by": "the child"}).id)


def enqueue_many():
    return chains.enqueue_many([jobs.nothing.item() for _ in range(3)])


def test_parent_and_child_enqueue_after_a_fork():
    jobs.nothing.enqueue()
    child = Child([enqueue_one, lambda: [str(chain.id) for chain in enqueue_many()]])
    try:
        mine = [str(jobs.nothing.enqueue().id) for _ in range(3)]
        theirs = [child.answer(), *child.answer()]
    finally:
        child.end()
    assert len({*mine, *theirs}) == 7
    assert len({UUID(each).int % 2**62 for each in [*mine, *theirs]}) == 7, "They have random bits in common."
    assert Chain.objects.filter(pk__in=[*mine, *theirs]).count() == 7
