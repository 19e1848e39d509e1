"""The options of ``run_jobworker``."""

import math
import re
from argparse import ArgumentTypeError

from django.core.management.base import CommandParser

_UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3}


def add_worker_options(parser: CommandParser) -> None:
    parser.add_argument("--slots", type=_positive, help="attempts that run at once (JOBCHAINS['SLOTS'])")
    parser.add_argument(
        "--async-slots", type=_positive, help="those of async handlers, on one event loop (JOBCHAINS['ASYNC_SLOTS'])"
    )
    parser.add_argument("--queue", action="append", metavar="NAME", help="a queue to serve; repeat it (all)")
    parser.add_argument("--type", action="append", metavar="PATTERN", help="types to run: shop.*; repeat it (all)")
    parser.add_argument("--database", metavar="ALIAS", help="alias of the job tables (JOBCHAINS['DATABASE'])")
    parser.add_argument("--burst", action="store_true", help="end when nothing is due")
    parser.add_argument("--max-jobs", type=_positive, metavar="N", help="end, or be replaced, after N jobs")
    parser.add_argument("--max-rss", type=_size, metavar="SIZE", help="end, or be replaced, above it: 500M, 2G")
    parser.add_argument(
        "--shutdown-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="for running handlers (JOBCHAINS['SHUTDOWN_SECONDS'])",
    )
    parser.add_argument("--name", help="shown in place of the host's name")
    _add_process_options(parser)


def _add_process_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--processes", type=_positive, metavar="N", help="run N worker processes, and keep them running"
    )
    parser.add_argument("--reload", action="store_true", help="restart when a Python file changes; for development")
    parser.add_argument("--health-port", type=_port, metavar="PORT", help="answer /live and /ready over HTTP")
    parser.add_argument("--health-host", default="127.0.0.1", metavar="ADDRESS", help="for --health-port (127.0.0.1)")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < math.inf:
        raise ArgumentTypeError(f"{text!r} must be seconds, 0 or more")
    return seconds


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} must be a whole number from 1")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ArgumentTypeError(f"{text!r} must be a port, 1 to 65535")
    return int(text)


def _size(text: str) -> int:
    """Bytes."""
    found = re.fullmatch(r"([1-9][0-9]*)([KMG])", text, re.ASCII | re.IGNORECASE)
    if not found:
        raise ArgumentTypeError(f"{text!r} must be a whole number with K, M or G, as in 500M")
    return int(found[1]) * _UNITS[found[2].upper()]
