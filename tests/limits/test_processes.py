"""Worker processes follow changes of limits."""

import pytest

from django_jobchains import chains, limits
from tests.shop.models import Effect
from tests.support.waiting import until
from tests.support.worker_app import jobs

pytestmark = pytest.mark.slow
#: The time in which a change takes effect, and a margin for a busy machine.
IN_EFFECT_SECONDS = 10


def started():
    return Effect.objects.filter(label__startswith="start").count()


@pytest.mark.parametrize(
    ("job_type", "what"), [(jobs.for_all, {"name": "chaos.for_all"}), (jobs.of_queue, {"queue": "narrow"})]
)
def test_a_limit_takes_effect_in_a_worker_process(start_process, registry, job_type, what):
    """The jobs take longer than the test, so only a change of the limit can start more of them. Its polls are rare."""
    registry.add(jobs.processors)
    limits.set(**what, concurrency=3)
    chains.enqueue_many([job_type.item({"key": "a", "seconds": 120}) for _ in range(8)])
    start_process("--slots", "8", jobchains={"POLL_SECONDS": 60}).until_ready()
    until(lambda: started() == 3, 60)
    limits.set(**what, concurrency=5)
    until(lambda: started() == 5, IN_EFFECT_SECONDS)
