"""Renders parcel labels in child processes, as one would with a library that leaks, crashes and hangs.

The renderer is harmless. ``Trouble`` makes it misbehave in the first attempt, to show what happens then.
"""

import os
import signal
import sys
import time
from dataclasses import dataclass
from html import escape

from django.db import models

from django_jobchains import Backoff, Processors, RunningJob
from django_jobchains.pools import Isolation

LEAKED_BYTES = 200 * 1024**2
HANG_SECONDS = 600

#: A child process that holds more than ``max_rss`` after a job is replaced.
LABELS = Isolation("process", key="labels", max_workers=2, max_rss="250M", grace_seconds=1)

processors = Processors(isolation=LABELS, timeout=3, backoff=Backoff(initial_seconds=1, maximum_seconds=8))


class Trouble(models.TextChoices):
    NONE = "none", "Nothing: the label is rendered"
    LEAK = "leak", "It leaks 200 MB of memory"
    CRASH = "crash", "It crashes"
    HANG = "hang", "It hangs"


@dataclass(frozen=True)
class Label:
    recipient: str
    address: str
    trouble: str = Trouble.NONE


@processors.register("shop.render_label", label="For {recipient}")
def render_label(job: RunningJob[Label]) -> str:
    """Return the label as an SVG image."""
    if job.attempt == 1:
        _misbehave(job.input.trouble)
    return svg(job.input)


def svg(label: Label) -> str:
    lines = [label.recipient, *label.address.split(",")]
    texts = "".join(
        f'<text x="16" y="{44 + 30 * number}" font-size="22">{escape(line.strip())}</text>'
        for number, line in enumerate(lines)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 360 {60 + 30 * len(lines)}" font-family="sans-serif">'
        f'<rect width="100%" height="100%" fill="#fff" stroke="#000" stroke-width="4"/>{texts}</svg>'
    )


_leaked: list[bytearray] = []


def _misbehave(trouble: str) -> None:
    if trouble == Trouble.LEAK:
        _leaked.append(bytearray(b"x") * LEAKED_BYTES)
    elif trouble == Trouble.CRASH:
        print("label renderer: assertion failed in font cache", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    elif trouble == Trouble.HANG:
        time.sleep(HANG_SECONDS)
