"""Run the named legs, two parts at a time when there are several, then say how each went."""

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NoReturn

from tests.matrix import Failed, Unavailable
from tests.matrix.commands import end_all, output
from tests.matrix.legs import LEGS, ORDER

#: Tests wait more than they compute: two of the suites at once keep two cores busy.
AT_ONCE = 2


def main(names: list[str]) -> int:
    signal.signal(signal.SIGTERM, _leave)  # so that servers are stopped on the way out
    if unknown := [name for name in names if name not in LEGS]:
        print(f"No such leg: {', '.join(unknown)}. There are: {', '.join(LEGS)}.", file=sys.stderr)
        return 2
    parts = sorted((part for name in names or LEGS for part in LEGS[name].items()), key=rank)
    results = [run(*parts[0])] if len(parts) == 1 else run_all(parts)
    print("\n" + "\n".join(f"{name:<22} {outcome:<8} {seconds:4.0f} s" for name, outcome, seconds in results))
    return int(any(is_red(outcome) for _, outcome, _ in results))


def rank(part: tuple[str, Callable[[], None]]) -> int:
    """What is soon told comes first, then the long ones, so that none is left over at the end."""
    name, _ = part
    return ORDER.index(name) if name in ORDER else len(ORDER)


def run_all(parts: list[tuple[str, Callable[[], None]]]) -> list[tuple[str, str, float]]:
    """Each part's output is shown when it has ended."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            return list(pool.map(lambda part: run_aside(*part), parts))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise


def run_aside(part: str, step: Callable[[], None]) -> tuple[str, str, float]:
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        output.file = file
        try:
            return run(part, step)
        finally:
            output.file = None
            file.seek(0)
            print(file.read(), flush=True)


def run(part: str, step: Callable[[], None]) -> tuple[str, str, float]:
    output.say(f"\n=== {part} " + "=" * (100 - len(part)))
    started = time.monotonic()
    outcome = attempt(step)
    return part, outcome, time.monotonic() - started


def attempt(step: Callable[[], None]) -> str:
    try:
        step()
    except Failed as error:
        return complain("FAILED", error)
    except Unavailable as error:
        return complain("NOT RUN", error)
    except Exception as error:
        output.say(traceback.format_exc())
        return complain("FAILED", error)
    return "ok"


def complain(outcome: str, error: Exception) -> str:
    output.say(f"\n!!! {outcome}: {error}")
    return outcome


def is_red(outcome: str) -> bool:
    return outcome == "FAILED" or (outcome == "NOT RUN" and "CI" in os.environ)


def _leave(number: int, frame: object) -> NoReturn:
    raise SystemExit(128 + number)


sys.exit(main(sys.argv[1:]))
