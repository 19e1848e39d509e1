"""The setups of docs/guides/wake-ups.md, with real servers: TLS, Sentinel, Cluster, least rights, a socket."""

import subprocess
import time
from dataclasses import replace

import pytest
from redis.exceptions import NoPermissionError

from django_jobchains.notifications import get_notifier, job_scheduled
from django_jobchains.notifications.redis import RedisNotifier
from django_jobchains.testing.contracts import NotifierContract
from tests.support.servers import free_port
from tests.support.servers.redis import FACTORY, SLOTS, RedisServer, certificate, has_state, node, program, running
from tests.support.waiting import until

SHIP = replace(job_scheduled("shop.ship", 5), id="00000000000000aa")
#: Options of notifiers whose hints must arrive: on a busy machine, the default timeout might expire.
PATIENT = {"timeout_seconds": 15}

pytestmark = pytest.mark.usefixtures("short_intervals")


@pytest.fixture
def check_hints_and_budgets(listen):
    """Return a function that checks that hints arrive and that budgets are shared, and returns what is received."""

    def check():
        notifier = get_notifier("default")
        received = listen(notifier)
        notifier.send([SHIP])
        until(received.of_a_type)
        assert received.of_a_type() == [SHIP]
        assert [notifier.take(SHIP, 3, "a") for _ in range(3)] == [3, 2, 0]
        return received

    yield check
    get_notifier("default").close()


def test_tls(tmp_path, use_redis, check_hints_and_budgets):
    options = [program(), "--tls-port", "0", "--no-such-option", "1"]
    if b"tls-port" in subprocess.run(options, capture_output=True).stderr:
        pytest.skip(f"{program()} was built without TLS.")
    shown, key = certificate(tmp_path)
    port = free_port()
    options = ("--tls-port", str(port), "--tls-cert-file", shown, "--tls-key-file", key, "--tls-ca-cert-file", shown)
    with running(RedisServer(tmp_path / "server", *options, "--tls-auth-clients", "no", password="secret")):
        url = f"rediss://:secret@127.0.0.1:{port}/0"
        use_redis(url, PATIENT, CONNECTION_POOL_KWARGS={"ssl_ca_certs": shown})
        check_hints_and_budgets().listener.close()
        use_redis(url)
        with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
            get_notifier("default").send([SHIP])


def test_unix_socket(tmp_path, use_redis, check_hints_and_budgets):
    with running(RedisServer(tmp_path, "--unixsocket", str(tmp_path / "socket"))):
        use_redis(f"unix://{tmp_path / 'socket'}", PATIENT)
        check_hints_and_budgets().listener.close()


#: The example of docs/guides/wake-ups.md.
PERMISSIONS = (
    "on >secret resetchannels &django_jobchains.* resetkeys ~django_jobchains:taken:* ~django_jobchains.*:taken:* "
    "-@all +publish +subscribe +unsubscribe +ping +evalsha +script|load +get +set"
)
FORBIDDEN = ("GET other", "SET django_jobchains:other 1", "PUBLISH other 1", "KEYS *", "FLUSHALL", "CONFIG GET *")


def test_documented_permissions_are_sufficient_and_minimal(redis_server, use_redis, check_hints_and_budgets, caplog):
    with redis_server.admin as admin:
        admin.execute_command("ACL", "SETUSER", "jobs", *PERMISSIONS.split())
    use_redis(f"redis://jobs:secret@127.0.0.1:{redis_server.port}/0", PATIENT)
    check_hints_and_budgets()
    of_another_database = RedisNotifier("archive", **PATIENT)
    assert of_another_database.take(SHIP, 1, "a") == 1
    of_another_database.close()
    assert not caplog.text
    with get_notifier("default")._connections.client() as client:
        for command in FORBIDDEN:
            with pytest.raises(NoPermissionError):
                client.execute_command(*command.split())


@pytest.mark.slow
def test_sentinel_failover(tmp_path, use_redis, check_hints_and_budgets):
    primary = RedisServer(tmp_path / "primary")
    replica = RedisServer(tmp_path / "replica", "--replicaof", "127.0.0.1", str(primary.port))
    configuration = tmp_path / "sentinel.conf"
    configuration.write_text(
        f"sentinel monitor jobs 127.0.0.1 {primary.port} 1\n"
        "sentinel down-after-milliseconds jobs 2000\n"
        "sentinel failover-timeout jobs 2000\n"
    )
    sentinel = RedisServer(tmp_path / "sentinel", mode=(str(configuration), "--sentinel"))
    with running(primary, replica, sentinel):
        use_redis(
            "redis://jobs/0",
            PATIENT,
            CLIENT_CLASS="django_redis.client.SentinelClient",
            CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
            SENTINELS=[("127.0.0.1", sentinel.port)],
        )
        received, notifier = check_hints_and_budgets(), get_notifier("default")
        with replica.admin as admin, sentinel.admin as watcher:
            until(lambda: admin.info("replication").get("master_link_status") == "up")
            until(lambda: watcher.sentinel_slaves("jobs"))
            primary.kill()
            until(lambda: admin.info("replication")["role"] == "master", 60)
        until(lambda: notifier.publish([SHIP]) or len(received.of_a_type()) > 1, 60)
        assert notifier.take(SHIP, 3, "b") == 3
        received.listener.close()


def take_all_slots(node):
    with node.admin as admin:
        admin.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS))
        until(lambda: has_state(admin, "cluster_state:ok"))


@pytest.fixture(scope="session")
def _shared_cluster(tmp_path_factory):
    only = node(tmp_path_factory.mktemp("cluster"))
    with running(only):
        take_all_slots(only)
        yield only


@pytest.fixture
def cluster(_shared_cluster, use_redis):
    """A cluster of one node, which is empty and which the project uses."""
    if not _shared_cluster.is_running:
        _shared_cluster.start()
    use_redis(_shared_cluster.url, CONNECTION_FACTORY=FACTORY)
    with _shared_cluster.admin as admin:
        admin.flushall()
    return _shared_cluster


@pytest.mark.usefixtures("cluster")
class TestCluster(NotifierContract):
    has_budgets = True

    def make(self):
        return RedisNotifier("default", **PATIENT)


@pytest.mark.parametrize("outage", ["stop", "freeze"])
def test_publishing_does_not_wait_for_an_unreachable_cluster_and_works_again_afterwards(cluster, outage):
    getattr(cluster, outage)()
    notifier, started = get_notifier("default"), time.monotonic()
    for number in range(100):
        notifier.publish([job_scheduled(f"type.{number}")])
        assert notifier.take(SHIP, 1, "c") is None
    assert time.monotonic() - started < 200 * 0.2 / 2, "most calls did not wait for the timeout of 0.2 seconds"
    cluster.thaw() if outage == "freeze" else cluster.start()
    until(lambda: notifier.take(SHIP, 1, "c") == 1)
    notifier.send([SHIP])


@pytest.mark.slow
def test_cluster_slots_may_move(tmp_path, use_redis, check_hints_and_budgets):
    one, other = node(tmp_path / "one"), node(tmp_path / "other")
    with running(one, other), one.admin as admin, other.admin as other_admin:
        take_all_slots(one)
        admin.execute_command("CLUSTER", "MEET", "127.0.0.1", str(other.port))
        until(lambda: has_state(admin, "known_nodes:2") and has_state(other_admin, "cluster_state:ok"))
        use_redis(one.url, PATIENT, CONNECTION_FACTORY=FACTORY)
        received, notifier = check_hints_and_budgets(), get_notifier("default")
        assert notifier.take(SHIP, 1, "moves") == 1
        slot = admin.execute_command("CLUSTER", "KEYSLOT", f"django_jobchains:taken:moves:{SHIP.id}")
        admin.flushall()
        name = other_admin.execute_command("CLUSTER", "MYID")
        for each in (other_admin, admin):
            each.execute_command("CLUSTER", "SETSLOT", slot, "NODE", name)
        assert notifier.take(SHIP, 1, "moves") is None
        until(lambda: notifier.take(SHIP, 1, "moves") == 1)
        received.listener.close()


@pytest.mark.slow
def test_a_cluster_is_found_again_without_the_node_of_the_url(tmp_path, use_redis, check_hints_and_budgets):
    options = ("--cluster-require-full-coverage", "no", "--cluster-node-timeout", "1000")
    one, other = (node(tmp_path / name, *options) for name in ("one", "other"))
    with running(one, other), one.admin as admin, other.admin as other_admin:
        admin.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS // 2))
        other_admin.execute_command("CLUSTER", "ADDSLOTS", *range(SLOTS // 2, SLOTS))
        admin.execute_command("CLUSTER", "MEET", "127.0.0.1", str(other.port))
        until(lambda: all(has_state(each, f"cluster_slots_assigned:{SLOTS}") for each in (admin, other_admin)))
        until(lambda: all(has_state(each, "cluster_state:ok") for each in (admin, other_admin)))
        use_redis(one.url, PATIENT, CONNECTION_FACTORY=FACTORY)
        received, notifier = check_hints_and_budgets(), get_notifier("default")
        one.kill()
        until(lambda: notifier.publish([SHIP]) or len(received.of_a_type()) > 1, 60)
        received.listener.close()
