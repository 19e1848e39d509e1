from django.db import migrations

from django_jobchains.storage_parameters import SetStorageParameters

#: These tables keep history, and only what is new in them changes. A share of the whole table, as the server has it
#: (0.2), would let 2 million dead rows gather beside 10 million jobs that are kept; and a vacuum that rests as often as
#: the server's does not get through while thousands of jobs end in a second.
OF_HISTORY = {
    "autovacuum_vacuum_scale_factor": 0.05,
    "autovacuum_analyze_scale_factor": 0.05,
    "autovacuum_vacuum_cost_limit": 2000,
}


class Migration(migrations.Migration):
    dependencies = [
        ("django_jobchains", "0002_workers"),
    ]

    operations = [
        # No fillfactor: claiming and finishing change the status, which stands in indexes, so no update is a HOT one.
        SetStorageParameters("Job", OF_HISTORY),
        SetStorageParameters("JobBlocker", OF_HISTORY),
        SetStorageParameters("FailedAttempt", OF_HISTORY),
        # A heartbeat changes no column that is in an index: with room in its page it is a HOT update, and its page is
        # cleared without a vacuum.
        SetStorageParameters("WorkerPresence", {"fillfactor": 50}),
    ]
