from typing import Any

from django_jobchains.processors import Processors, RunningJob
from tests.processors.apps.plain.jobs import approval, charge
from tests.processors.apps.plain.jobs import processors as those_of_plain

__all__ = ("approval", "charge", "processors", "those_of_plain")

processors = Processors()


@processors.register("listed.work")
def work(job: RunningJob[Any]) -> None: ...
