"""``python -m benchmarks.sharding``: the same jobs in one database and in four, in turns, with four worker processes.

All databases are on one new server of this machine, so this measures what shards cost, not what more servers bring.
"""

import os
import sys
from statistics import median

import django

from benchmarks.own_server import own_server

NAMES = [f"shard_{number}" for number in range(1, 5)]
SLOTS = 5
ROUNDS = 3
JOBS = {"bench.value": 12_000, "bench.insert": 3_000}


def main() -> None:
    with own_server("-c max_connections=300") as url:
        os.environ["BENCH_DATABASE_URL"] = url
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.project.settings")
        django.setup()
        from django.db import connections

        from benchmarks.database import connected, migrate

        with connected() as server:
            for name in NAMES:
                server.execute(f"CREATE DATABASE {name}")
                connections.databases[name] = {**connections.databases["default"], "NAME": name}
                migrate(name)
        for type_name, jobs in JOBS.items():
            rates = [(drain(type_name, jobs, NAMES[:1]), drain(type_name, jobs, NAMES)) for _ in range(ROUNDS)]
            ratios = ", ".join(f"{four / one:.2f}" for one, four in rates)
            one, four = (median(each) for each in zip(*rates, strict=True))
            line = f"{type_name}: {one:,.0f} jobs/s in one database, {four:,.0f} in four; ratios {ratios}"
            sys.stdout.write(f"{line}; load {os.getloadavg()[0]:.1f}\n")
            sys.stdout.flush()
        for name in NAMES:
            connections[name].close()


def drain(type_name: str, jobs: int, names: list[str]) -> float:
    """Distribute the jobs over the databases, and return how many per second four processes run."""
    from benchmarks.database import fill
    from benchmarks.workers import check_ended, figures, together, worker_command

    for name in names:
        fill(type_name, jobs // len(names), name)
    command = [*worker_command([type_name], "default", SLOTS), "--burst"]
    processes = [names[number % len(names)] for number in range(len(NAMES))]
    marks = together([["env", f"BENCH_DATABASE_NAME={name}", *command] for name in processes])
    check_ended(marks, jobs)
    return figures(marks, jobs)["jobs/s"]


if __name__ == "__main__":
    main()
