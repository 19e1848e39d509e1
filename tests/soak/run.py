"""One run: the server, the workers, the load and the faults; then the oracle, and a summary."""

import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median

import psutil
from django.core.management import call_command
from django.db import DatabaseError, InterfaceError, connection
from django.db.models import Q

from django_jobchains import limits
from django_jobchains.models import Job
from tests.soak import journal
from tests.soak.faults import Faults, Fleet, SmallDisks, code_of
from tests.soak.jobs import LEASE_SECONDS, LIMITS, QUEUE, RATES
from tests.soak.models import Effect, Letter, Order, Parcel
from tests.soak.oracle import Effect as Seen
from tests.soak.oracle import Evidence, RateNumbers, examine
from tests.support.servers import ROOT
from tests.support.servers.postgresql import installed

#: How long the workers may take in the end, when nothing fails any more.
DRAIN_SECONDS = 300
SAMPLE_SECONDS = 10
#: How many violations of each kind the summary shows.
SHOWN = 20


class Soak:
    def __init__(self, port, environment, options):
        self._folder = options.folder
        self._port = port
        self._environment = environment
        self._options = options
        self._samples = {"worker": [], "web process": []}

    def run(self):
        began = datetime.now(UTC)
        with tempfile.TemporaryDirectory(prefix="jobchains-", ignore_cleanup_errors=True) as name:
            server = SmallDisks(Path(name), installed(18), self._port)
            try:
                server.create()
                call_command("migrate", run_syncdb=True, verbosity=0)
                set_limit_of_queue()
                fleet = Fleet(self._folder, self._environment)
                try:
                    facts = self._under_fire(server, fleet)
                finally:
                    fleet.remove()
                return {**self._conditions(began, server), **facts, **self._examine()}
            finally:
                connection.close()
                server.remove()

    def _under_fire(self, server, fleet):
        seconds = self._options.minutes * 60
        fleet.until_ready()
        load = [self._start_load(seconds, acts_as) for acts_as in ("people", "")]
        try:
            faults = Faults(server, fleet, random.Random(self._options.seed))
            faults.plan(seconds, self._options.hurry)
            until, sampled_at = time.monotonic() + seconds, 0.0
            while faults.run_due() or time.monotonic() < until:
                if time.monotonic() - sampled_at > SAMPLE_SECONDS:
                    sampled_at = time.monotonic()
                    self._sample("worker", fleet.survivor.pid)
                    self._sample("web process", load[0].pid)
                time.sleep(0.05)
            codes = [code_of(process) for process in load]
            drained_after, left = wait_for_workers()
        finally:
            for process in load:
                process.kill()
                process.wait()
        return {
            "faults": faults.counts,
            "drained_after_seconds": drained_after,
            "left": left,
            "exit_codes": {"web processes": codes, "workers": fleet.stop()},
            "statements_without_room": server.log().count("No space left on device"),
            "resources": {name: summary_of(samples) for name, samples in self._samples.items()},
        }

    def _start_load(self, seconds, acts_as):
        arguments = [str(seconds), str(self._options.rate / 2), acts_as]
        with (self._folder / f"load-{acts_as or 'only'}").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.soak.load", *arguments], stdout=output, stderr=output, cwd=ROOT
            )

    def _sample(self, name, pid):
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_STOPPED:
                facts = process.memory_info().rss / 2**20, process.num_fds(), process.num_threads()
                self._samples[name].append(facts)

    def _conditions(self, began, server):
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
        with connection.cursor() as cursor:
            cursor.execute("SHOW server_version")
            (postgresql,) = cursor.fetchone()
        return {
            "commit": commit,
            "began": began.isoformat(timespec="seconds"),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "options": {name: getattr(self._options, name) for name in ("minutes", "rate", "seed", "hurry")},
            "machine": f"{os.cpu_count()} cores, {psutil.virtual_memory().total // 2**30} GiB, {platform.machine()}",
            "versions": {
                "python": platform.python_version(), "postgresql": postgresql.split()[0],
                **{name: version(name) for name in ("django", "psycopg")},
            },
        }  # fmt: skip

    def _examine(self):
        lines = journal.read(self._folder / "journal")
        orders = {str(pk): kind for pk, kind in Order.objects.values_list("pk", "kind")}
        columns = ("order_id", "what", "job_id", "token", "seen")
        effects = [Seen(*map(str, row)) for row in Effect.objects.values_list(*columns)]
        (self._folder / "tables.json").write_text(json.dumps({"orders": orders, "effects": effects}))
        rates = {name: RateNumbers(rate.limit, rate.seconds, rate.burst) for name, rate in RATES.items()}
        findings = examine(Evidence(lines, orders, effects, LIMITS, rates, LEASE_SECONDS))
        written = Counter(line["what"] for line in lines)
        return {
            "orders": Counter(orders.values()),
            "chains": chains_of(orders.values(), effects),
            "attempts": written["start"],
            "attempts_without_end": written["start"] - written["end"],
            "effects": len(effects),
            "changes_of_limits": written["limit_set"],
            "errors_of_requests": written["error"],
            "attempts_that_lost_their_lease": findings.lost_leases,
            "most_at_once": findings.peaks,
            "rates": {name: use._asdict() for name, use in findings.rates.items()},
            "violations": {kind: [len(texts), texts[:SHOWN]] for kind, texts in findings.violations.items()},
        }


def set_limit_of_queue():
    facts = {"name": f"queue {QUEUE}", "number": 3}
    journal.write("limit_asked", **facts)
    limits.set(queue=QUEUE, concurrency=3)
    journal.write("limit_set", **facts)


def wait_for_workers():
    """Wait until no work is left, and return after how many seconds. In the end, return what is left."""
    began = time.monotonic()
    later_ticks = Q(type_name="soak.tick", created_at__gt=datetime.now(UTC))
    while time.monotonic() - began < DRAIN_SECONDS:
        with suppress(DatabaseError, InterfaceError):
            jobs = Job.objects.incomplete().exclude(later_ticks).values()[:SHOWN]
            records = [Model.objects.exclude(state="completed").values()[:SHOWN] for Model in (Parcel, Letter)]
            left = [str(row) for rows in (jobs, *records) for row in rows]
            if not left:
                break
        connection.close()
        time.sleep(1)
    return round(time.monotonic() - began, 1), left


def chains_of(kinds, effects):
    """Return the number of chains: an order has one, except a fan-in, which has four, and records, which have none.

    A tick and a failure that is followed have one too.
    """
    numbers = {"fan_in": 4, "record": 0, "letter": 0}
    return sum(numbers.get(kind, 1) for kind in kinds) + sum(effect.what in ("tick", "failed") for effect in effects)


def summary_of(samples):
    """Return the medians of memory (MB), descriptors and threads in ten parts of the run."""
    size = max(len(samples) // 10, 1)
    parts = [samples[start : start + size] for start in range(0, len(samples), size)][:10]
    return [[round(median(column)) for column in zip(*part, strict=True)] for part in parts]
