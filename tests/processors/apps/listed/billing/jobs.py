from typing import Any

from django_jobchains.processors import Processors, RunningJob

processors = Processors()


@processors.register("listed.bill")
def bill(job: RunningJob[Any]) -> None: ...
