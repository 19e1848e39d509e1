"""An attempt fails if a function of ``aprepare`` or ``acomplete`` ends its transaction or leaves another one open."""

from contextlib import suppress
from typing import Any, Literal

import pytest
from django.db import connection, transaction

from django_jobchains.exceptions import TransactionEnded, TransactionLeftOpen
from django_jobchains.models import Chain
from django_jobchains.processors import Processors, RunningJob
from tests.attempts.conftest import second_alias
from tests.shop.models import Effect
from tests.support.attempts import committed

__all__ = ("second_alias",)

pytestmark = committed

Phase = Literal["complete", "staged", "atomic"]
phases = pytest.mark.parametrize("phase", ["complete", "staged", "atomic"])


def enqueue(once: Processors, phase: Phase, function: Any) -> Chain:
    """Enqueue a job whose handler calls the function inside the phase, and swallows the error of the phase."""

    @once.register("messy")
    async def messy(job: RunningJob[Any]) -> str:
        def write() -> None:
            Effect.objects.create(job_id=job.id, label="half")
            function()

        with suppress(TransactionLeftOpen, TransactionEnded):
            await (job.acomplete(write) if phase == "complete" else job.aprepare(write, phase))
        return "done"

    return messy.enqueue()


def assert_failed(chain: Chain, error: type[Exception]) -> None:
    job = chain.refresh().current_job
    assert (job.status, job.attempt, job.output) == ("pending", 1, None)
    assert (job.last_error or "").startswith(f"{error.__name__}: ")
    assert not Effect.objects.exists()


@phases
def test_transaction_ended_in_a_phase_fails_the_attempt(once, work, phase):
    def end() -> None:
        with connection.cursor() as cursor:
            cursor.execute("ROLLBACK")
            cursor.execute("BEGIN")

    chain = enqueue(once, phase, end)
    work()
    assert_failed(chain, TransactionEnded)


@phases
def test_transaction_left_open_on_another_database_fails_the_attempt(once, work, second_alias, phase):
    chain = enqueue(once, phase, lambda: transaction.atomic(using=second_alias).__enter__())
    work()
    assert_failed(chain, TransactionLeftOpen)
