"""Installs the systems to compare with, each in a separate environment: ``make bench-peers``."""

import subprocess
import sys

from benchmarks.peers import environments
from benchmarks.peers.catalogue import PEERS, Peer


def main() -> None:
    missing = [peer.name for peer in _one_of_each_environment() if not _install(peer)]
    if missing:
        sys.exit(f"Not installed: {', '.join(missing)}.")


def _one_of_each_environment() -> list[Peer]:
    return list({peer.environment: peer for peer in reversed(PEERS)}.values())[::-1]


def _install(peer: Peer) -> bool:
    """Install a peer, or report why this fails. Return whether it is installed."""
    if environments.is_ready(peer):
        return True
    interpreter = environments.interpreter(peer)
    if interpreter is None:
        version = ".".join(map(str, peer.python))
        wanted = (
            "npm, which is not on the PATH"
            if peer.is_node
            else f"Python {version} or newer, which is neither on the PATH nor in pyenv"
        )
        print(f"{peer.name} requires {wanted}.", file=sys.stderr)
        return False
    print(f"Installing {peer.name} ...", flush=True)
    try:
        environments.prepare(peer, interpreter)
    except subprocess.CalledProcessError as error:
        print(f"{peer.name} could not be installed: {error}", file=sys.stderr)
        return False
    print(f"  {environments.version(peer)}", flush=True)
    return True


if __name__ == "__main__":
    main()
