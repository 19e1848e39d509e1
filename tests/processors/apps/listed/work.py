from typing import Any

from django_jobchains.processors import Processors, RunningJob
from tests.processors.apps.plain.jobs import approval, charge
from tests.processors.apps.plain.jobs import processors as plain_processors

__all__ = ("approval", "charge", "plain_processors", "processors")

processors = Processors()


@processors.register("listed.work")
def work(job: RunningJob[Any]) -> None: ...
