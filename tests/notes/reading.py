"""What the tables hold of what jobs said."""

from django_jobchains.models import Chain, JobProgress, LogLine


def lines(chain: Chain) -> list[LogLine]:
    return list(LogLine.objects.filter(job__chain_id=chain.id).order_by("job_id", "lease_number", "position"))


def texts(chain: Chain) -> list[str]:
    return [line.text for line in lines(chain)]


def progress(chain: Chain) -> tuple[float, str]:
    said = JobProgress.objects.get(job__chain_id=chain.id)
    return said.fraction, said.text
