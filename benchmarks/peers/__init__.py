"""Other systems beside ours: contestants of the cells that have the same name as a subject.

``make bench-peers`` installs them. Each runs in an environment, a process and a database of its own, with a concurrency
of ten and handlers that do nothing, in the way its pages say.
"""

import socket
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from urllib.parse import urlsplit

from benchmarks.cells import Figures
from benchmarks.peers import environments
from benchmarks.peers.catalogue import PEERS, REDIS, Peer

#: Cells that take peers.
SUBJECTS = ("enqueue", "enqueue-many", "drain", "wake-up", "chain-latency")


def settings() -> dict[str, str]:
    """By peer that is installed: its version, and how it is run."""
    return {peer.name: f"{environments.version(peer)}; {peer.settings}; {peer.amounts}" for peer in present()}


def contestants(subject: str, *, is_quick: bool) -> dict[str, Callable[[], Figures]]:
    """By peer, one run with the metrics of our own cell; only peers whose environment is installed."""
    from benchmarks.peers import runs

    run = getattr(runs, subject.replace("-", "_"))
    return {peer.name: partial(run, peer, is_quick=is_quick) for peer in present() if peer.takes(subject)}


@cache
def present() -> tuple[Peer, ...]:
    """Names the others on the standard error."""
    return tuple(peer for peer in PEERS if _is_there(peer))


def _is_there(peer: Peer) -> bool:
    reason = next(_reasons(peer), "")
    if reason:
        print(f"Without {peer.name}: {reason}", file=sys.stderr)
    return not reason


def _reasons(peer: Peer) -> Iterator[str]:
    if not environments.is_ready(peer):
        yield "not installed (make bench-peers)."
    if not peer.pending and not _answers(REDIS):
        yield "no Redis answers at BENCH_REDIS_URL."


def _answers(url: str) -> bool:
    place = urlsplit(url)
    try:
        with socket.create_connection((place.hostname or "127.0.0.1", place.port or 6379), timeout=2):
            return True
    except OSError:
        return False
