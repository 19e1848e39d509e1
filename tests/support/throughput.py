"""Counts that workers report, and the database's clock."""

from datetime import timedelta

from django_jobchains.store.stats import TypeTally
from tests.support.jobs import SHIP


def tally(type_name=SHIP, age_seconds=0.0, queue="default", **counts):
    """Return a tally with these counts; without any, one completed attempt."""
    numbers = dict.fromkeys(("failed", "crashed", "jobs_failed", "seconds", "longest_seconds"), 0)
    return TypeTally(type_name, queue, age_seconds, **{"completed": 0 if counts else 1, **numbers, **counts})


def put_clock(store, minute, second):
    """Set the database's clock to this minute and second of the hour after the next."""
    store.db.ahead_seconds = 0
    now = store.stats.time_ago(0)
    hour = now.replace(minute=0, second=0, microsecond=0) + timedelta(hours=2)
    store.db.ahead_seconds = (hour + timedelta(minutes=minute, seconds=second) - now).total_seconds()
