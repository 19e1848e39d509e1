"""A task of Django's framework that does the same as the job ``bench.value``."""

from benchmarks.project import marks

try:
    from django.tasks import task
except ImportError:  # Django 5.2
    from django_tasks import task


@task
def value(i: int) -> int:
    """Return a value and write nothing."""
    marks.started()
    return i
