"""Other systems, which are contestants of our cells. A subject is the name of a cell.

``make bench-peers`` installs them. Each runs in a separate environment, process and database, with a concurrency of ten
and handlers that do nothing, as its documentation describes.
"""

import fnmatch
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from urllib.parse import urlsplit

from benchmarks.cells import Figures
from benchmarks.peers import environments
from benchmarks.peers.catalogue import DRAINED, OF_TASKS, PEERS, REDIS, Peer

#: The cells that measure peers.
SUBJECTS = ("enqueue", "enqueue-many", "drain", "wake-up", "chain-latency", *DRAINED, *OF_TASKS)


def names(wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the installed peers with these names, which may be patterns. Report the missing ones.

    None wants none of them, and an empty list wants all.
    """
    if wanted is None:
        return ()
    known = [peer.name for peer in PEERS]
    if unknown := [pattern for pattern in wanted if not fnmatch.filter(known, pattern)]:
        sys.exit(f"No such peer: {', '.join(unknown)}. There are: {', '.join(known)}.")
    chosen = {name for pattern in wanted or ("*",) for name in fnmatch.filter(known, pattern)}
    return tuple(peer.name for peer in PEERS if peer.name in chosen and _is_there(peer))


def settings(present: Collection[str]) -> dict[str, dict[str, str]]:
    """Return the version, the configuration and the guarantees of each peer."""
    return {
        peer.name: {
            "version": environments.version(peer),
            "settings": f"{peer.settings}; {peer.amounts}",
            "guarantees": peer.guarantees,
        }
        for peer in PEERS
        if peer.name in present
    }


def contestants(subject: str, present: Collection[str], *, is_quick: bool) -> dict[str, Callable[[], Figures]]:
    """Return a run by peer, which measures the metrics of our own cell."""
    from benchmarks.peers import runs

    if subject not in SUBJECTS:
        return {}
    run = runs.drain if subject in DRAINED else getattr(runs, OF_TASKS.get(subject, subject).replace("-", "_"))
    taking = (peer for peer in PEERS if peer.name in present and peer.takes(subject))
    return {peer.name: partial(run, peer, is_quick=is_quick) for peer in taking}


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
