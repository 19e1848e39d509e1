"""A PostgreSQL cluster that fails over: Patroni on three hosts, with etcd and HAProxy on this machine."""

import http.client
import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import psycopg

from tests.support.servers import Unavailable
from tests.support.servers.cluster import USER, binaries
from tests.support.servers.debian import program
from tests.support.servers.downloads import fetch, unpacked
from tests.support.servers.programs import ServerProgram
from tests.support.waiting import until

VERSION = "4.1.5"
SERVERS = 3
DATABASE_PORT, REST_PORT, ETCD_PORT = 5432, 8008, 2379
#: The shortest times that Patroni allows: a primary that has vanished is replaced after ``ttl`` seconds.
TIMES = {"ttl": 20, "loop_wait": 2, "retry_timeout": 3, "primary_start_timeout": 0}
PARAMETERS = {"max_connections": 200, "fsync": "off", "wal_log_hints": "on", "wal_keep_size": "1GB"}
#: PostgreSQL refuses to run as root.
AS_USER = ("runuser", "-u", USER, "--")
HAPROXY = """
defaults
    mode tcp
    timeout connect 2s
    timeout client 1h
    timeout server 1h
listen primary
    bind 127.0.0.1:{port}
    option httpchk GET /primary
    http-check expect status 200
    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions
{servers}
"""


@cache
def patroni():
    """Return the folder with Patroni and what it imports."""

    def install(folder):
        pip = (sys.executable, "-m", "pip", "install", "-qq")
        fetch(*pip, "--target", str(folder), f"patroni[etcd3,psycopg3]=={VERSION}")

    return unpacked(f"patroni-{VERSION}", install)


@cache
def etcd():
    return program("etcd", "etcd-server")


@cache
def haproxy():
    return program("haproxy", "haproxy", "liblua5.3-0", "libopentracing1", "libopentracing-c-wrapper0")


@cache
def python():
    """Return a Python that the user of the servers can execute."""
    for path in (f"{sys.base_prefix}/bin/python3", "/usr/bin/python3"):
        if subprocess.run([*AS_USER, path, "-c", ""], capture_output=True).returncode == 0:
            return path
    raise Unavailable(f"the user {USER} cannot execute any Python")


class Etcd(ServerProgram):
    def __init__(self, folder, address):
        super().__init__(folder)
        self._client = f"http://{address}:{ETCD_PORT}"
        self._address = address

    def start(self):
        peer = f"http://127.0.0.1:{self.port}"
        client = ("--listen-client-urls", self._client, "--advertise-client-urls", self._client)
        peers = ("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer)
        self.run(
            *etcd(), "--data-dir", str(self._folder / "data"), *client, *peers, "--initial-cluster", f"default={peer}"
        )

    def is_ready(self):
        return ask(self._address, ETCD_PORT, "/health")[0] == 200


class Proxy(ServerProgram):
    """HAProxy on a port of this machine, which leads to the primary."""

    def __init__(self, folder, hosts):
        super().__init__(folder)
        servers = [f"    server {host.name} {host.address}:{DATABASE_PORT} check port {REST_PORT}" for host in hosts]
        self._file = folder / "haproxy.cfg"
        self._file.write_text(HAPROXY.format(port=self.port, servers="\n".join(servers)))

    def start(self):
        self.run(*haproxy(), "-db", "-f", str(self._file))

    def is_ready(self):
        return True

    def leads_to_primary(self):
        """Return whether it has noticed which servers are not the primary: at first, it uses all of them in turn."""
        options = {"user": USER, "dbname": "postgres", "connect_timeout": 5}
        with suppress(psycopg.OperationalError):
            for _ in range(SERVERS):
                with psycopg.connect(host="127.0.0.1", port=self.port, **options) as connection:
                    if connection.execute("SELECT pg_is_in_recovery()").fetchone()[0]:
                        return False
            return True


class Patroni:
    """Three servers, one of which is the primary. ``hosts``: of ``network``."""

    def __init__(self, network, *, synchronous=True):
        self.network = network
        self.directory = Path(tempfile.mkdtemp(prefix="jobchains-"))
        self.hosts = [network.add_host() for _ in range(SERVERS)]
        self._processes = {}
        #: The roles in a cluster in which another server can take over.
        self._roles = {"leader", "sync_standby" if synchronous else "replica"}
        self._installation = shutil.copytree(patroni(), self.directory / "patroni", symlinks=True)
        self._etcd = Etcd(self.directory / "etcd", network.address)
        self._proxy = Proxy(self.directory / "haproxy", self.hosts)
        for host in self.hosts:
            self._configuration(host).write_text(json.dumps(self._settings(host, synchronous)))
        for path in (self.directory, *self.directory.glob("*.json")):
            shutil.chown(path, USER)

    @property
    def url(self):
        return f"postgresql://{USER}@127.0.0.1:{self._proxy.port}/"

    @property
    def environment(self):
        """Return the environment of a process that reaches the primary through HAProxy."""
        return {"JOBCHAINS_TEST_DATABASE": self.url, "JOBCHAINS_TEST_NAME": "postgres"}

    @property
    def environment_with_hosts(self):
        """Return the environment of a process that finds the primary itself, among all hosts."""
        options = {"target_session_attrs": "read-write", "connect_timeout": 2}
        url = f"postgresql://{USER}@{','.join(host.address for host in self.hosts)}:{DATABASE_PORT}/"
        variables = {"JOBCHAINS_TEST_DATABASE": url, "JOBCHAINS_TEST_DATABASE_OPTIONS": json.dumps(options)}
        return {**self.environment, **variables}

    def start(self):
        self._etcd.start()
        for host in self.hosts:
            self.start_host(host)
            if host is self.hosts[0]:
                until(self.primary, 30, self.log)
        self._proxy.start()
        self.until_whole()
        until(self._proxy.leads_to_primary, 60, self.log)

    def start_host(self, host):
        variables = (f"PYTHONPATH={self._installation}", f"HOME={self.directory}", "PGTZ=UTC")
        if host in self._processes:
            self._processes[host].wait()
        with self._log(host).open("ab") as log:
            self._processes[host] = subprocess.Popen(
                [*host.within, *AS_USER, "env", *variables, python(), "-m", "patroni", str(self._configuration(host))],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def primary(self, other_than=None):
        """Return the host that is the primary now, or None."""
        candidates = [host for host in self.hosts if host is not other_than]
        return next((host for host in candidates if ask(host.address, REST_PORT, "/primary")[0] == 200), None)

    def until_whole(self, seconds=120):
        """Wait until all servers run, and one of them confirms the commits of the primary."""
        until(self.is_whole, seconds, self.log)

    def is_whole(self):
        host = self.primary()
        members = ask(host.address, REST_PORT, "/cluster")[1].get("members", []) if host else []
        roles = {member["role"] for member in members}
        states = {member["state"] for member in members}
        return len(members) == SERVERS and states <= {"running", "streaming"} and self._roles <= roles

    def switch_over(self):
        """Exchange the primary in an orderly way."""
        before = self.primary()
        status, answer = ask(before.address, REST_PORT, "/switchover", {"leader": before.name}, timeout=60)
        assert status in (200, 202), answer

    def log(self):
        return "\n".join(
            f"{host.name}: {self._log(host).read_text()[-1_500:]}" for host in self.hosts if self._log(host).exists()
        )

    def remove(self):
        for host, process in self._processes.items():
            host.kill()
            process.wait()
        for started in (self._proxy, self._etcd):
            started.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _configuration(self, host):
        return self.directory / f"{host.name}.json"

    def _log(self, host):
        return self.directory / f"{host.name}.log"

    def _settings(self, host, synchronous):
        dcs = {
            **TIMES,
            "synchronous_mode": synchronous,
            "maximum_lag_on_failover": 1_048_576,
            "postgresql": {"use_pg_rewind": True, "parameters": PARAMETERS},
        }
        postgresql = {
            "listen": f"{host.address}:{DATABASE_PORT}",
            "connect_address": f"{host.address}:{DATABASE_PORT}",
            "data_dir": str(self.directory / f"{host.name}-data"),
            "bin_dir": str(binaries("pg_isready", "pg_rewind", "pg_basebackup")),
            "pgpass": str(self.directory / f"{host.name}-pgpass"),
            "authentication": {"superuser": {"username": USER}, "replication": {"username": "replicator"}},
            "pg_hba": ["host all all 0.0.0.0/0 trust", "host replication all 0.0.0.0/0 trust"],
            "parameters": {"unix_socket_directories": ""},
        }
        rest = f"{host.address}:{REST_PORT}"
        return {
            "scope": "fleet",
            "name": host.name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"host": f"{self.network.address}:{ETCD_PORT}"},
            "bootstrap": {"dcs": dcs, "initdb": [{"encoding": "UTF8"}, {"auth": "trust"}, {"locale": "C"}, "no-sync"]},
            "postgresql": postgresql,
        }


def ask(address, port, path, sent=None, timeout=1.0):
    """Return the status and the JSON of a response; status 0 if there is none."""
    connection = http.client.HTTPConnection(address, port, timeout=timeout)
    try:
        body = json.dumps(sent) if sent else None
        connection.request("POST" if sent else "GET", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, {}
    finally:
        connection.close()
    with suppress(ValueError):
        return response.status, json.loads(text)
    return response.status, {"text": text}
