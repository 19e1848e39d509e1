"""Other systems, which are contestants of our cells. A subject is the name of a cell.

``make bench-peers`` installs them. Each runs in a separate environment, process and database, with a concurrency of ten
and handlers that do nothing, as its documentation describes.
"""

import socket
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from urllib.parse import urlsplit

from benchmarks.cells import Figures
from benchmarks.peers import environments
from benchmarks.peers.catalogue import DRAINED, PEERS, REDIS, Peer

#: The cells that measure peers.
SUBJECTS = ("enqueue", "enqueue-many", "drain", "wake-up", "chain-latency", *DRAINED)


def settings() -> dict[str, str]:
    """Return the version and the configuration of each installed peer."""
    return {peer.name: f"{environments.version(peer)}; {peer.settings}; {peer.amounts}" for peer in present()}


def contestants(subject: str, *, is_quick: bool) -> dict[str, Callable[[], Figures]]:
    """Return a run by installed peer, which measures the metrics of our own cell."""
    from benchmarks.peers import runs

    run = runs.drain if subject in DRAINED else getattr(runs, subject.replace("-", "_"))
    return {peer.name: partial(run, peer, is_quick=is_quick) for peer in present() if peer.takes(subject)}


@cache
def present() -> tuple[Peer, ...]:
    """Return the installed peers, and report the missing ones on the standard error."""
    return tuple(peer for peer in PEERS if _is_there(peer))


def _is_there(peer: Peer) -> bool:
    reason = next(_reasons(peer), "")
    if reason:
        print(f"Skipping {peer.name}: {reason}", file=sys.stderr)
    return not reason


def _reasons(peer: Peer) -> Iterator[str]:
    if not environments.is_ready(peer):
        yield "not installed (make bench-peers)."
    if not peer.pending and not _answers(REDIS):
        yield "no Redis server responds at BENCH_REDIS_URL."


def _answers(url: str) -> bool:
    place = urlsplit(url)
    try:
        with socket.create_connection((place.hostname or "127.0.0.1", place.port or 6379), timeout=2):
            return True
    except OSError:
        return False
