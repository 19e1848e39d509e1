"""Tests of code that uses chains, without a worker: run what is due, look at what was enqueued, move the clock.

It all works inside a plain ``TestCase``, on its connection and in its transaction. pytest has it as the fixture
``jobchains``, which the package brings.
"""

from django_jobchains.attempts import Outcome
from django_jobchains.testing.clocks import Clock, clock
from django_jobchains.testing.enqueued import assert_enqueued
from django_jobchains.testing.running import run_due_jobs

__all__ = ("Clock", "Outcome", "assert_enqueued", "clock", "run_due_jobs")
