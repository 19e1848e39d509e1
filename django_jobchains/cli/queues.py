"""``queues``, ``pause``, ``resume`` and ``limit``: show and change queues while workers run."""

from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, ClassVar

from django_jobchains import queues
from django_jobchains.cli import converters
from django_jobchains.cli.status import queues_section
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.conf import get_settings
from django_jobchains.declare.registry import get_registry
from django_jobchains.monitoring import overview
from django_jobchains.text.redaction import redacted_text
from django_jobchains.values import did_you_mean


class QueuesCommand(Subcommand):
    name = "queues"
    help = "shows the backlog of each queue, and which queues are paused or limited"

    def run(self, call: Invocation) -> None:
        found = overview(call.using)
        if call.screen.is_json:
            call.screen.json({"queues": [asdict(queue) for queue in found.queues]})
        elif found.queues:
            call.screen.table(queues_section(found).columns, found.queues)
        else:
            call.screen.line("No jobs are waiting or running, and no queue is paused or limited.")


def queue_warnings(names: Iterable[str], *databases: str | None) -> Iterator[str]:
    """Yield a warning for each queue that nothing uses, because its name may be misspelled. It can be used anyway."""
    registry = get_registry()
    known = {queue.name for using in databases for queue in overview(using, count_to=1).queues}
    known |= {get_settings().QUEUE} | {processor.queue for processor in registry.processors() if processor.queue}
    known |= {kind.queue for kind in registry.record_types()}
    for name in dict.fromkeys(names):
        if name not in known:
            nearest = did_you_mean(name, known)
            yield f"No jobs are in the queue {name!r}, and no worker or job type names it.{nearest}"


def _warn(names: Iterable[str], call: Invocation) -> None:
    for warning in queue_warnings(names, call.using):
        call.screen.errors.write(warning)


class _QueueCommand(Subcommand):
    change: ClassVar[Callable[..., Any]]
    participle: ClassVar[str]

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("names", nargs="+", type=converters.queue, metavar="QUEUE", help="names of queues")

    def run(self, call: Invocation) -> None:
        names = list(dict.fromkeys(call["names"]))
        _warn(names, call)
        type(self).change(*names, using=call.using)
        if call.screen.is_json:
            call.screen.json({self.participle: names})
        else:
            call.screen.line(f"{', '.join(names)} {self.participle}.", "success")


class PauseCommand(_QueueCommand):
    name = "pause"
    help = "stops workers from starting jobs of these queues; running jobs continue"
    change = staticmethod(queues.pause)
    participle = "paused"


class ResumeCommand(_QueueCommand):
    name = "resume"
    help = "lets workers start jobs of these queues again"
    change = staticmethod(queues.resume)
    participle = "resumed"


class LimitCommand(Subcommand):
    name = "limit"
    help = "limits how many jobs of a queue run at once, in all workers together"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("queue", type=converters.queue, metavar="QUEUE", help="name of the queue")
        parser.add_argument("slots", type=converters.slots, metavar="N|none", help="jobs at once; none for no limit")

    def run(self, call: Invocation) -> None:
        _warn([call["queue"]], call)
        queues.set_limit(call["queue"], call["slots"], using=call.using)
        if call.screen.is_json:
            call.screen.json({"queue": call["queue"], "slot_limit": call["slots"]})
            return
        limit = "no limit" if call["slots"] is None else f"at most {call['slots']} at once"
        call.screen.sentence(f"{redacted_text(call['queue'])}: {limit}.", "success")
