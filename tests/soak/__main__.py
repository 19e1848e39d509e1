"""Run the load against the faults, examine what is left, and write a summary."""

import argparse
import json
import os
import shutil
import signal
import sys
from pathlib import Path

import django

from tests.support.servers import CACHE, ROOT, free_port


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=62, help="chains in a second")
    parser.add_argument("--seed", type=int, default=1, help="of the times and kinds of the faults")
    parser.add_argument("--hurry", type=float, default=1, help="how many times as often things fail")
    parser.add_argument("--folder", type=Path, default=CACHE / "soak", help="of the journals and of the summary")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    shutil.rmtree(options.folder, ignore_errors=True)
    (options.folder / "journal").mkdir(parents=True)
    port = free_port()
    environment = {
        "DJANGO_SETTINGS_MODULE": "tests.soak.settings",
        "JOBCHAINS_TEST_DATABASE": f"postgresql://postgres@127.0.0.1:{port}",
        "JOBCHAINS_TEST_NAME": "soak",
        "SOAK_JOURNAL": str(options.folder / "journal"),
        "PYTHONPATH": str(ROOT),
        "PGTZ": "UTC",
    }
    os.environ.update(environment)
    django.setup()
    from tests.soak.run import Soak

    summary = Soak(port, environment, options).run()
    (options.folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps(summary, indent=1))
    return 1 if summary["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
