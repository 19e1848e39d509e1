"""Measures one cell: the process ``python -m benchmarks.one SUBJECT CELL AMOUNT FILE``, started by the whole run.

In one process, the garbage and the imports of the cells before would influence the figures: ``enqueue_many`` was 14 %
slower after other cells.
"""

import json
import signal
import sys
import time
from pathlib import Path

import django


def main(subject: str, name: str, amount: str, file: str) -> None:
    # Like Ctrl-C, SIGTERM stops the workers and drops the databases of the peers.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit("Stopped by SIGTERM."))
    django.setup()
    from benchmarks.cells import measure
    from benchmarks.machine import load, steal_share, ticks
    from benchmarks.report import as_json
    from benchmarks.subjects import Amount, cells

    how = Amount(**json.loads(amount))
    (cell,) = (cell for cell in cells(subject, how) if cell.name == name)
    before, began = ticks(), time.monotonic()
    result = measure(cell, how.rounds, _progress)
    _progress("")
    around = {"load": load(), "steal": steal_share(before), "seconds": time.monotonic() - began}
    Path(file).write_text(json.dumps({**as_json(result), **around}))


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
