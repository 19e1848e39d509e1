"""A worker's health port while its database is down or does not respond."""

import pytest

from tests.support.servers.cluster import cluster, server, start_process
from tests.support.waiting import until
from tests.worker.test_supervisor import ask, free_port

pytestmark = [pytest.mark.slow, pytest.mark.postgresql]

__all__ = ("cluster", "server", "start_process")


def test_worker_without_a_database_is_live_and_not_ready(cluster, start_process):
    port = free_port()
    cluster.stop()
    process = start_process("--health-port", str(port), jobchains={"LIVENESS_SECONDS": 5})
    until(lambda: "trying again" in process.output, 60, lambda: process.output)
    assert [ask(port, path)[0] for path in ("/live", "/ready")] == [200, 503]
    cluster.start()
    until(lambda: ask(port, "/ready")[0] == 200, 30, lambda: (ask(port, "/"), process.output))
    try:
        cluster.freeze()
        until(lambda: ask(port, "/ready")[0] == 503, 30)
        until(lambda: ask(port, "/live")[0] == 503, 30)
        assert "is busy with one step" in ask(port, "/live")[1]["problems"][0]
    finally:
        cluster.thaw()
    until(lambda: ask(port, "/ready")[0] == 200, 30, lambda: ask(port, "/"))
    assert "Traceback" not in process.output
