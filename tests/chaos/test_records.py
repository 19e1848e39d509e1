"""Workers drain records while they are killed and their database restarts: none is lost, none is handled by two."""

import pytest

from tests.chaos.oracle import lasting
from tests.records.test_kills import drain
from tests.support.servers.cluster import ALIAS, cluster, reconnect, server, start_process

pytestmark = [pytest.mark.slow, pytest.mark.postgresql, pytest.mark.timeout(lasting(0) + 240)]

__all__ = ("cluster", "server", "start_process")


def test_records_survive_killed_workers_and_restarts_of_the_database(cluster, start_process):
    """Every second kill comes with a restart of the database."""

    def restart(number):
        if number % 2:
            cluster.restart("immediate" if number % 4 == 1 else "fast")
            reconnect()

    drain(start_process, count=5_000, workers=8, step=200, interfere=restart, using=ALIAS)
