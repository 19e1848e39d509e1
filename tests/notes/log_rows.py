"""Queries for the log lines and the progress of a chain."""

from django_jobchains.models import Chain, JobProgress, LogLine


def lines(chain: Chain) -> list[LogLine]:
    return list(LogLine.objects.filter(job__chain_id=chain.id).order_by("job_id", "lease_number", "position"))


def texts(chain: Chain) -> list[str]:
    return [line.text for line in lines(chain)]


def progress(chain: Chain) -> tuple[float, str]:
    row = JobProgress.objects.get(job__chain_id=chain.id)
    return row.fraction, row.text
