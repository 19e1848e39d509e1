"""Profiles a worker's time by thread: ``python -m benchmarks --profile JOB_TYPE``. Requires py-spy.

The CPU time of each thread comes from the operating system. The functions are those that held the interpreter (the GIL)
when a sample was taken, so that no other thread of the process could run.
"""

import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.database import fill
from benchmarks.workers import SLOTS, burst

SAMPLES_A_SECOND = 500


def profile(job_type: str, jobs: int, slots: int = SLOTS, top: int = 25) -> None:
    py_spy = shutil.which("py-spy")
    if py_spy is None:
        sys.exit("py-spy is not on the PATH: pip install py-spy")
    show_threads(job_type, jobs, slots)
    show_stacks(record(py_spy, job_type, jobs, slots), top)


def show_threads(job_type: str, jobs: int, slots: int) -> None:
    fill(job_type, jobs)
    (marks,) = burst(job_type, slots=slots, BENCH_THREADS="1")
    seconds = marks["last"]["time"] - marks["first"]["time"]
    cpu = marks["last"]["cpu"] - marks["first"]["cpu"]
    print(f"\n{job_type}: {marks['ended'] / seconds:,.0f} jobs/s")
    print(f"{cpu / jobs * 1e6:.0f} µs CPU a job, {cpu / seconds:.0%} of a core")
    threads: Counter[str] = Counter()
    for name, used in marks["threads"].items():
        threads[group(name)] += used
    print("CPU by thread (start-up included in the main thread):")
    for name, used in threads.most_common():
        print(f"  {name:<12} {used:6.2f} s  {used / jobs * 1e6:6.0f} µs a job")


def record(py_spy: str, job_type: str, jobs: int, slots: int) -> list[tuple[list[str], int]]:
    fill(job_type, jobs)
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "stacks"))
        how = ("--format", "raw", "--threads", "--function", "--rate", str(SAMPLES_A_SECOND), "--output", file)
        burst(job_type, slots=slots, prefix=(py_spy, "record", "--gil", *how, "--"))
        lines = Path(file).read_text().splitlines()
    stacks = []
    for line in lines:
        frames, _, count = line.rpartition(" ")
        thread, *functions = frames.split(";")
        stacks.append(([group(thread), *functions], int(count)))
    return [(stack, count) for stack, count in stacks if stack[0] not in ("main", "samples")]


def group(name: str) -> str:
    """Return the part of the worker that a thread belongs to; all slots are one part."""
    if match := re.search(r"jobchains-([a-z]+)", name):
        return match[1]
    return "samples" if "samples" in name else "main"


def show_stacks(stacks: list[tuple[list[str], int]], top: int) -> None:
    total = sum(count for _, count in stacks)
    threads: Counter[str] = Counter()
    for stack, count in stacks:
        threads[stack[0]] += count
    shares = ", ".join(f"{name} {count / total:.0%}" for name, count in threads.most_common())
    print(f"\nSamples holding the GIL: {total:,} ({shares})")
    for title, functions in (("own", own_time), ("with callees", whole_time)):
        counts: Counter[str] = Counter()
        by_thread: Counter[tuple[str, str]] = Counter()
        for stack, count in stacks:
            for function in functions(stack[1:]):
                counts[function] += count
                by_thread[function, stack[0]] += count
        names = [name for name, _ in threads.most_common(3)]
        print(f"\n  GIL, {title:<14}" + " ".join(f"{name:>10}" for name in ("all", *names)))
        for function, count in counts.most_common(top):
            parts = " ".join(f"{by_thread[function, name] / total:10.1%}" for name in names)
            print(f"  {count / total:10.1%} {parts}  {function}")


def own_time(functions: list[str]) -> set[str]:
    return {short(functions[-1])} if functions else set()


def whole_time(functions: list[str]) -> set[str]:
    return {short(function) for function in functions}


def short(function: str) -> str:
    return re.sub(r"\((?:\S*/)?site-packages/", "(", function)
