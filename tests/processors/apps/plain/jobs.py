from typing import Any

from django_jobchains.processors import JobType, Processors, RunningJob

processors = Processors()
approval: JobType[Any, Any] = JobType("plain.approval")


@processors.register("plain.charge")
def charge(job: RunningJob[Any]) -> None: ...
