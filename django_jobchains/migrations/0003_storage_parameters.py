from django_jobchains.db.online_migrations import OnlineMigration
from django_jobchains.db.storage_parameters import SetStorageParameters

#: These tables keep history, and only what is new in them changes. A share of the whole table, as the server has it
#: (0.2), would let 2 million dead rows gather beside 10 million jobs that are kept; and a vacuum that rests as often as
#: the server's does not get through while thousands of jobs end in a second.
OF_HISTORY = {
    "autovacuum_vacuum_scale_factor": 0.05,
    "autovacuum_analyze_scale_factor": 0.05,
    "autovacuum_vacuum_cost_limit": 2000,
}


class Migration(OnlineMigration):
    dependencies = [
        ("django_jobchains", "0002_workers"),
    ]

    operations = [
        # No fillfactor. Claiming, renewing and finishing change columns that stand in indexes, so no update is a HOT one
        # whatever room its page has; and those of workers' rows, which are in no index, all are without it.
        SetStorageParameters("Job", OF_HISTORY),
        SetStorageParameters("JobBlocker", OF_HISTORY),
        SetStorageParameters("FailedAttempt", OF_HISTORY),
    ]
