"""Run the named legs, two parts at a time when there are several, then say how each went."""

import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NoReturn

from tests.matrix import Failed, Unavailable, Unsteady
from tests.matrix.commands import end_all, output
from tests.matrix.legs import LEGS, ORDER

#: Tests wait about as much as they compute: with three of the suites at once some no longer come in time.
AT_ONCE = 2


@dataclass
class Result:
    """How a part went. ``failures``: what its tests said of those that failed, a line each."""

    part: str
    outcome: str
    seconds: float
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n  ".join([f"{self.part:<22} {self.outcome:<8} {self.seconds:4.0f} s", *self.failures])


def main(names: list[str]) -> int:
    signal.signal(signal.SIGTERM, _leave)  # so that servers are stopped on the way out
    if unknown := [name for name in names if name not in LEGS]:
        print(f"No such leg: {', '.join(unknown)}. There are: {', '.join(LEGS)}.", file=sys.stderr)
        return 2
    parts = sorted((part for name in names or LEGS for part in LEGS[name].items()), key=rank)
    results = [run(*parts[0])] if len(parts) == 1 else run_all(parts)
    print("\n" + "\n".join(map(str, sorted(results, key=lambda result: result.outcome != "ok"))))
    return int(any(is_red(result.outcome) for result in results))


def rank(part: tuple[str, Callable[[], None]]) -> int:
    """What is soon told comes first, then the long ones, so that none is left over at the end."""
    name, _ = part
    return ORDER.index(name) if name in ORDER else len(ORDER)


def run_all(parts: list[tuple[str, Callable[[], None]]]) -> list[Result]:
    """Each part's output is shown when it has ended."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        try:
            return list(pool.map(lambda part: run_aside(*part), parts))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            end_all()
            raise


def run_aside(part: str, step: Callable[[], None]) -> Result:
    with tempfile.TemporaryFile("w+", errors="replace") as file:
        output.file = file
        try:
            result = run(part, step)
        finally:
            output.file = None
            file.seek(0)
            text = file.read()
            print(text, flush=True)
        result.failures = [line[:300] for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return result


def run(part: str, step: Callable[[], None]) -> Result:
    output.say(f"\n=== {part} " + "=" * (100 - len(part)))
    started = time.monotonic()
    outcome = attempt(step)
    return Result(part, outcome, time.monotonic() - started)


def attempt(step: Callable[[], None]) -> str:
    try:
        step()
    except Failed as error:
        return complain("FAILED", error)
    except Unsteady as error:
        return complain("UNSTEADY", error)
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
