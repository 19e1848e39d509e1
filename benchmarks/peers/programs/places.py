"""The database of a peer's jobs."""

import os

DATABASE = os.environ["BENCH_PEER_DATABASE"]
URL = os.environ["BENCH_PEER_URL"]
