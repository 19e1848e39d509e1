"""The database of a peer's jobs."""

import os

from benchmarks.project.settings import SERVER

DATABASE = os.environ["BENCH_PEER_DATABASE"]
URL = SERVER._replace(path=f"/{DATABASE}").geturl()
