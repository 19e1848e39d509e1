"""The floor of the latency cells, in a separate process."""

import signal
import sys
from typing import Any

from benchmarks import times
from benchmarks.bare_signals import WAITS
from benchmarks.crowd import report_ready
from benchmarks.database import connect
from benchmarks.project.jobs import STEPS
from benchmarks.statements import FINISH_ONE, INSERT_ONE, Claim
from django_jobchains.db.ids import new_id


def run(type_name: str, signals: str) -> None:
    """Wait for a signal of ``WAITS``, then claim, mark and finish until nothing is due: one thread, one connection."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit())
    last = 1 if type_name == "bench.wake" else STEPS
    claim = Claim(type_name, 1)
    with connect() as bare:
        for _ in WAITS[signals](bare):
            report_ready()
            while rows := claim(bare):
                _handle(bare, rows[0], type_name, last)


def _handle(bare: Any, row: tuple[Any, ...], type_name: str, last: int) -> None:
    job_id, chain_id, index = row[:3]
    if index + 1 == last:
        times.append()
        bare.execute(FINISH_ONE, ["1", job_id]).fetchone()
        return
    with bare.transaction():
        bare.execute(FINISH_ONE, ["1", job_id]).fetchone()
        bare.execute(INSERT_ONE, [new_id(), chain_id, index + 1, type_name, type_name, '{"i": 1}']).fetchone()
