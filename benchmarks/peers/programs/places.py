"""Where the jobs of a peer are kept."""

import os

from benchmarks.project.settings import SERVER

DATABASE = os.environ["BENCH_PEER_DATABASE"]
URL = SERVER._replace(path=f"/{DATABASE}").geturl()
