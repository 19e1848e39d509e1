"""The options of ``run_jobworker``."""

from argparse import ArgumentTypeError

from django.core.management.base import CommandParser

from django_jobchains.cli.converters import positive, seconds
from django_jobchains.isolation import parse_size


def add_worker_options(parser: CommandParser) -> None:
    parser.add_argument("--slots", type=positive, help="attempts that run at once (JOBCHAINS['SLOTS'])")
    parser.add_argument(
        "--async-slots",
        type=positive,
        help="the same for async handlers (JOBCHAINS['ASYNC_SLOTS'])",
    )
    parser.add_argument("--queue", action="append", metavar="NAME", help="queue to serve; repeatable (default: all)")
    parser.add_argument(
        "--type", action="append", metavar="PATTERN", help="types to run: shop.*; repeatable (default: all)"
    )
    parser.add_argument("--database", metavar="ALIAS", help="database alias of the job tables (JOBCHAINS['DATABASE'])")
    parser.add_argument("--burst", action="store_true", help="exit when nothing is due")
    parser.add_argument("--max-jobs", type=positive, metavar="N", help="exit, or be replaced, after N jobs")
    parser.add_argument(
        "--max-rss", type=_size, metavar="SIZE", help="exit, or be replaced, above this memory: 500M, 2G"
    )
    parser.add_argument(
        "--max-active", type=seconds, metavar="SECONDS", help="claim nothing after this time, and exit, or be replaced"
    )
    parser.add_argument(
        "--shutdown-timeout",
        type=seconds,
        metavar="SECONDS",
        help="how long to wait for running handlers (JOBCHAINS['SHUTDOWN_SECONDS'])",
    )
    parser.add_argument(
        "--maintenance-only", action="store_true", help="run no jobs: take back those of dead workers, and prune"
    )
    parser.add_argument("--name", help="worker name instead of the host's name")
    _add_process_options(parser)


def _add_process_options(parser: CommandParser) -> None:
    parser.add_argument(
        "--processes", type=positive, metavar="N", help="run N worker processes, and restart those that exit"
    )
    parser.add_argument("--reload", action="store_true", help="restart when a Python file changes; for development")
    parser.add_argument("--health-port", type=_port, metavar="PORT", help="answer /live and /ready over HTTP")
    parser.add_argument(
        "--health-host", default="127.0.0.1", metavar="ADDRESS", help="for --health-port (default: 127.0.0.1)"
    )


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ArgumentTypeError(f"{text!r} must be a port, 1 to 65535")
    return int(text)


def _size(text: str) -> int:
    """Return bytes. A number without a unit is more likely a mistake."""
    size = parse_size(text)
    if not size or text.isdecimal():
        raise ArgumentTypeError(f"{text!r} must be a whole number with K, M or G, as in 500M")
    return size
