"""``python -m benchmarks.calls``: the Python calls of this package that one job takes, and the files they are in.

Calls are counted, not timed, so the figures are the same on every machine. The calls of a worker are the difference
between draining many jobs and draining few, divided by the difference in jobs: what a batch costs once is spread over
its jobs. The smallest of several counts is taken, because batches are smaller on a busy machine.
"""

import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import django
from django.conf import settings

FEW, MANY = 100, 300
ROUNDS = 5
#: A function that is called less often for each job does not count as part of running one job.
MIN_CALLS_PER_JOB = 0.5

Calls = Counter[tuple[str, str]]


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings.configure(
            INSTALLED_APPS=["django_jobchains"],
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(Path(folder, "calls.sqlite3"))}},
            USE_TZ=True,
            SECRET_KEY="counts nothing secret",
            LOGGING_CONFIG=None,
        )
        django.setup()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)
        _report(_ways())


def _ways() -> dict[str, dict[tuple[str, str], float]]:
    from django_jobchains.processors import Processors, RunningJob, get_registry

    processors = Processors()

    @processors.register("calls.value")
    def value(job: RunningJob[Any]) -> int:
        return 1

    @processors.register("calls.complete")
    def complete(job: RunningJob[Any]) -> int:
        with job.complete():
            return 1

    get_registry().add(processors)
    value.enqueue(1)  # reads what is cached afterwards, such as settings
    ways: dict[str, dict[tuple[str, str], float]] = {"enqueue": dict(_counted(lambda: value.enqueue(1)))}
    for title, job_type in (("run, returned value", value), ("run, complete()", complete)):
        ways[title] = min((_calls_per_job(job_type) for _ in range(ROUNDS)), key=lambda calls: sum(calls.values()))
    return ways


def _calls_per_job(job_type: Any) -> dict[tuple[str, str], float]:
    few, many = _run(job_type, FEW), _run(job_type, MANY)
    return {key: (count - few[key]) / (MANY - FEW) for key, count in many.items()}


def _run(job_type: Any, count: int) -> Calls:
    from django_jobchains import chains
    from django_jobchains.worker import Worker

    Worker(slots=1).run_until_idle()
    chains.enqueue_many([job_type.item(1) for _ in range(count)])
    return _counted(Worker(slots=1).run_until_idle)


def _counted(call: Callable[[], object]) -> Calls:
    calls: Calls = Counter()
    package = str(Path(django.apps.apps.get_app_config("django_jobchains").path)) + "/"

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(package):
            calls[frame.f_code.co_filename.removeprefix(package), frame.f_code.co_qualname] += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return calls


def _report(ways: dict[str, dict[tuple[str, str], float]]) -> None:
    for title, calls in ways.items():
        regular = {key: count for key, count in calls.items() if count >= MIN_CALLS_PER_JOB}
        files = sorted({file for file, _ in regular})
        print(f"{title}: {sum(calls.values()):.0f} calls, {len(regular)} functions, {len(files)} files")
        if "--functions" in sys.argv:
            for (file, name), count in sorted(regular.items(), key=lambda item: (item[0][0], -item[1])):
                print(f"    {count:5.1f}  {file}  {name}")


if __name__ == "__main__":
    main()
