"""A server that forks its processes after it has enqueued: parent and child go on, each on its own."""

from typing import Any

import pytest

from django_jobchains import chains
from django_jobchains.models import Chain
from tests.attempts.work import committed
from tests.chaos.app import jobs
from tests.waiting.forking import Child

pytestmark = [committed, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


def enqueued() -> Any:
    return str(jobs.nothing.enqueue({"by": "the child"}).id)


def more() -> Any:
    return chains.enqueue_many([jobs.nothing.item() for _ in range(3)])


def test_parent_and_child_enqueue_after_a_fork() -> None:
    jobs.nothing.enqueue()
    child = Child([enqueued, lambda: [str(chain.id) for chain in more()]])
    try:
        mine = [str(jobs.nothing.enqueue().id) for _ in range(3)]
        theirs = [child.answer(), *child.answer()]
    finally:
        child.end()
    assert len({*mine, *theirs}) == 7
    assert Chain.objects.filter(pk__in=[*mine, *theirs]).count() == 7
