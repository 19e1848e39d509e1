"""One tenant's very large backlog does not delay the jobs of others."""

import pytest
from django.db import connection

from django_jobchains import chains
from django_jobchains.models import Job
from tests.support.waiting import until

LARGE, SMALL, TENANTS = 1_000_000, 10, 99
#: The number of starts among which those of the small tenants must be.
FIRST = 2_500
INSERT = f"""
    INSERT INTO {Job._meta.db_table} (id, chain_id, chain_index, chain_type_name, type_name, queue, priority, status,
        run_at, attempt, lease_number, crashes, input, created_at, limit_key)
    SELECT d.id, d.id, 0, %s, %s, 'default', 0, 'pending', now() - interval '1 hour', 0, 0, 0, '{{"tenant": 0}}', now(),
        %s
    FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, %s)) AS d
"""


@pytest.mark.slow
@pytest.mark.postgresql
@pytest.mark.timeout(500)
def test_tenants_with_few_jobs_start_among_the_first(processors, start_worker):
    order = []
    sync = processors.register("limits.sync", fair="tenant")(lambda job: order.append(job.input["tenant"]))
    turn = processors.by_name[sync.name].limits.keys(sync.name, {"tenant": 0}).turn
    with connection.cursor() as cursor:
        cursor.execute(INSERT, [sync.name, sync.name, turn, LARGE])
        cursor.execute(f"ANALYZE {Job._meta.db_table}")
    chains.enqueue_many([sync.item({"tenant": tenant}) for tenant in range(1, TENANTS + 1) for _ in range(SMALL)])
    workers = [start_worker(slots=10) for _ in range(2)]
    until(lambda: sum(map(bool, list(order))) == TENANTS * SMALL, 120)
    for worker in workers:
        worker.stop()
    last = max(number for number, tenant in enumerate(order) if tenant)
    print(f"The last of {TENANTS * SMALL} jobs of small tenants was the start number {last + 1}.")
    assert last < FIRST
