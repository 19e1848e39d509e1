from django_jobchains.processors import Backoff
from tests.support.attempts import no_wake_ups
from tests.support.fixtures import only_slice

__all__ = ("no_wake_ups",)


#: Jobs are retried after 100 seconds, which is after the test.
processors = only_slice(backoff=Backoff(initial_seconds=100, jitter=0))
