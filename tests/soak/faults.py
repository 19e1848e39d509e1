"""The server, the worker processes, and everything that happens to them."""

import heapq
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from itertools import count

import psutil
import psycopg

from tests.soak import journal
from tests.soak.jobs import LEASE_SECONDS
from tests.support.servers.postgresql import Server
from tests.support.worker_processes import WorkerProcess

#: Also needed: the load's connections, and those of the threads and slots of all workers.
OPTIONS = (
    "-c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off -c max_connections={connections} "
    "-c max_wal_size=64MB -c min_wal_size=2MB -c wal_level=minimal -c max_wal_senders=0 "
    "-c log_min_messages=error -c log_min_error_statement=panic"
)
MAX_CONNECTIONS = 90
DATABASE = "soak"
PAUSE_SECONDS = 1.5 * LEASE_SECONDS
FULL_SECONDS = 7
HOG_SECONDS = 4
#: The size of the file systems for the tables and for the log.
SIZES = {"tables": "3G", "wal": "512M"}


class SmallDisks(Server):
    """A server whose tables are on one small file system, and its write-ahead log on another one.

    ``are_small`` is False where file systems cannot be mounted.
    """

    def __init__(self, folder, installation, port):
        super().__init__(folder, installation)
        self.port = port
        self.disks = {name: folder / name for name in SIZES}
        self.are_small = False

    def create(self):
        for disk in self.disks.values():
            disk.mkdir()
        with suppress(subprocess.CalledProcessError):  # Only root may mount, and not everywhere.
            for name, disk in self.disks.items():
                mount(f"size={SIZES[name]}", disk)
            self.are_small = True
        for disk in self.disks.values():
            self._hand_over(disk)
        login = ("--username=postgres", "--auth=trust", "--encoding=UTF8", "--no-locale", "--no-sync")
        self.call("initdb", *login, "--wal-segsize=1", f"--waldir={self.disks['wal']}/log")
        self.start(self.port)
        space = self.disks["tables"] / "space"
        space.mkdir()
        self._hand_over(space)
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{space}'")
            connection.execute(f"CREATE DATABASE {DATABASE} TABLESPACE small")

    def _hand_over(self, folder):
        if self.run_as:
            shutil.chown(folder, self.run_as["user"])

    def start(self, port):
        options = f"-p {port} {OPTIONS.format(connections=MAX_CONNECTIONS)}"
        self.call("pg_ctl", "start", "--wait", f"--log={self.folder}/log", "--options", options)

    def restart(self, mode):
        with suppress(RuntimeError):  # It is not running.
            self.call("pg_ctl", "stop", f"--mode={mode}")
        self.until_up()

    def until_up(self):
        """Wait until the server accepts connections. Start it, if it has ended by itself."""
        for _ in range(120):
            with suppress(psycopg.Error), self.connect():
                return
            with suppress(RuntimeError):  # It is running, and starts or recovers.
                self.start(self.port)
            time.sleep(0.5)
        raise RuntimeError(f"The server does not come back:\n{self.log()[-3000:]}")

    def connect(self, database=DATABASE, **options):
        options = {"user": "postgres", "autocommit": True, "connect_timeout": 5, **options}
        return psycopg.connect(host="127.0.0.1", port=self.port, dbname=database, **options)

    def fill(self, name):
        """Leave no room on a file system: shrink it to what it uses."""
        for kilobytes in range(0, 10_000, 100):  # It grows meanwhile.
            used = shutil.disk_usage(self.disks[name]).used // 1024
            with suppress(subprocess.CalledProcessError):
                mount(f"remount,size={used + kilobytes}k", self.disks[name])
                break

    def empty(self, name):
        mount(f"remount,size={SIZES[name]}", self.disks[name])

    def remove(self):
        with suppress(RuntimeError):
            self.stop()
        for disk in self.disks.values():
            if disk.is_mount():
                subprocess.run(["umount", "--lazy", str(disk)], check=True)


def mount(options, folder):
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, capture_output=True)


class Fleet:
    """Worker processes. The survivor is paused and loses its sessions and children, but is never killed."""

    def __init__(self, folder, environment):
        self._folder = folder
        self._environment = environment
        self._numbers = count(1)
        self.survivor = self._start("--slots", "6")
        self.supervisor = self._start("--slots", "4", "--processes", "2")
        self.mortal = [self._start("--slots", "6") for _ in range(2)]

    def _start(self, *options):
        written = self._folder / f"worker-{next(self._numbers)}"
        jobchains = {"REAP_SECONDS": 1, "RETENTION_COMPLETED_SECONDS": 900, "PRUNE_SECONDS": 30}
        return WorkerProcess(written, *options, jobchains=jobchains, **self._environment)

    def until_ready(self):
        for process in self.all():
            process.until_ready()

    def workers(self):
        """Return the processes of workers that may be killed or paused: ``psutil`` processes."""
        return [psutil.Process(process.pid) for process in self.mortal] + self.supervisor.workers()

    def children(self):
        """Return the processes in which isolated jobs run, and those that start them."""
        parents = [*self.workers(), psutil.Process(self.survivor.pid)]
        return [child for parent in parents for child in children_of(parent)]

    def kill(self, process):
        """Kill a worker, and start another one, unless its supervisor does."""
        journal.write("killed", victim=process.pid)
        process.kill()
        for number, mortal in enumerate(self.mortal):
            if mortal.pid == process.pid:
                mortal.wait()
                self.mortal[number] = self._start("--slots", "6")

    def revive(self):
        """Start workers again that have ended by themselves, and return how many: there should be none."""
        ended = [number for number, mortal in enumerate(self.mortal) if not mortal.is_alive]
        for number in ended:
            self.mortal[number] = self._start("--slots", "6")
        return len(ended)

    def all(self):
        return [self.survivor, self.supervisor, *self.mortal]

    def stop(self):
        """Stop all workers in the normal way, and return their exit codes."""
        self.until_ready()  # A worker that was just started does not handle signals yet.
        for process in self.all():
            process.signal(signal.SIGTERM)
        return [code_of(process.process) for process in self.all()]

    def remove(self):
        for process in self.all():
            process.kill()


def code_of(process):
    """Wait for the end of a process, and return its exit code, or None if it does not end."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(300)


def children_of(process):
    with suppress(psutil.NoSuchProcess):
        return process.children(recursive=True)
    return []


class Faults:
    """Breaks something again and again, at random moments, and counts what it has done."""

    def __init__(self, server, fleet, rng):
        self._server = server
        self._fleet = fleet
        self._rng = rng
        self._queue = []
        self._order = count()
        self.counts = dict.fromkeys(("ended by itself", *(fault.__name__ for fault in INTERVALS)), 0)

    def plan(self, seconds, hurry):
        """Spread all faults over this time, and let them happen so many times as often."""
        for fault, interval in INTERVALS.items():
            if fault in DISKS and not self._server.are_small:
                continue
            at = self._rng.uniform(0.1, 0.9) * min(interval / hurry, seconds)  # At least once.
            while at < seconds:
                self._at(time.monotonic() + at, fault)
                at += self._rng.uniform(0.6, 1.4) * interval / hurry

    def run_due(self):
        """Do what is due, and return whether anything is left."""
        self.counts["ended by itself"] += self._fleet.revive()
        while self._queue and self._queue[0][0] <= time.monotonic():
            _, _, fault, arguments = heapq.heappop(self._queue)
            try:
                later = fault(self._server, self._fleet, self._rng, *arguments)
            except (psutil.NoSuchProcess, psycopg.Error, IndexError):  # There is nothing to break just now.
                self._at(time.monotonic() + 0.5, fault, *arguments)
                continue
            if fault in INTERVALS:
                self.counts[fault.__name__] += 1
                journal.write("fault", fault=fault.__name__)
            if later:
                self._at(*later)
        return bool(self._queue)

    def _at(self, when, fault, *arguments):
        heapq.heappush(self._queue, (when, next(self._order), fault, arguments))


def kill_worker(server, fleet, rng):
    fleet.kill(rng.choice(fleet.workers()))


def kill_child(server, fleet, rng):
    """Kill a process in which isolated jobs run, or one that starts them."""
    rng.choice(fleet.children()).kill()


def pause(server, fleet, rng):
    """Stop a worker for longer than its lease."""
    process = rng.choice([*fleet.workers(), psutil.Process(fleet.survivor.pid)])
    journal.write("paused", victim=process.pid)
    process.suspend()
    return time.monotonic() + PAUSE_SECONDS, resume, process


def resume(server, fleet, rng, process):
    journal.write("resumed", victim=process.pid)
    with suppress(psutil.NoSuchProcess):
        process.resume()


def restart_immediately(server, fleet, rng):
    server.restart("immediate")


def restart_fast(server, fleet, rng):
    server.restart("fast")


def terminate_sessions(server, fleet, rng):
    with server.connect() as connection:
        end_sessions(connection, "random() < 0.4")


def end_sessions(connection, condition):
    connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        f"WHERE datname = current_database() AND pid <> pg_backend_pid() AND {condition}"
    )


def exhaust_connections(server, fleet, rng):
    """End all sessions, and take all connections, before the others have connected again."""
    with taken_connections(server) as (first, *_):
        end_sessions(first, "application_name <> 'hog'")
        with taken_connections(server):
            time.sleep(HOG_SECONDS)


@contextmanager
def taken_connections(server):
    taken = []
    try:
        for _ in range(MAX_CONNECTIONS):
            with suppress(psycopg.Error):
                taken.append(server.connect(application_name="hog"))
        yield taken
    finally:
        for connection in taken:
            connection.close()


def fill_tables(server, fleet, rng):
    """Statements that need more room fail."""
    server.fill("tables")
    time.sleep(FULL_SECONDS)
    server.empty("tables")
    server.until_up()


def fill_wal(server, fleet, rng):
    """The server ends all sessions, and cannot start again before there is room for its log."""
    server.fill("wal")
    until = time.monotonic() + FULL_SECONDS
    while time.monotonic() < until:
        with suppress(psycopg.Error), server.connect() as connection:
            connection.execute("SELECT pg_logical_emit_message(false, 'soak', repeat('x', 1000000))")
        time.sleep(0.05)
    server.empty("wal")
    server.until_up()


DISKS = (fill_tables, fill_wal)
#: The faults, and the seconds between two of each kind on average.
INTERVALS = {
    kill_worker: 23,
    kill_child: 21,
    pause: 40,
    restart_immediately: 66,
    restart_fast: 66,
    terminate_sessions: 15,
    exhaust_connections: 120,
    fill_tables: 240,
    fill_wal: 360,
}
