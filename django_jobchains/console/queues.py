"""``queues``, ``pause``, ``resume`` and ``limit``: queues while workers run."""

from argparse import ArgumentParser
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, ClassVar

from django_jobchains import queues
from django_jobchains.console import arguments, facts
from django_jobchains.console.subcommand import Call, Subcommand
from django_jobchains.overview import overview


class Queues(Subcommand):
    name = "queues"
    help = "shows the queues: what is due, and which are paused or limited"

    def run(self, call: Call) -> None:
        found = overview(call.using)
        if call.screen.is_json:
            call.screen.json({"queues": [asdict(queue) for queue in found.queues]})
        elif found.queues:
            call.screen.table(facts.QUEUES, facts.queue_rows(found, call.screen))
        else:
            call.screen.line("No job waits or runs, and no queue is paused or limited.")


class _OfNames(Subcommand):
    change: ClassVar[Callable[..., Any]]
    participle: ClassVar[str]

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("names", nargs="+", type=arguments.queue, metavar="QUEUE")

    def run(self, call: Call) -> None:
        names = list(dict.fromkeys(call["names"]))
        type(self).change(*names, using=call.using)
        if call.screen.is_json:
            call.screen.json({self.participle: names})
        else:
            call.screen.line(f"{', '.join(names)} {self.participle}.", call.screen.style.SUCCESS)


class Pause(_OfNames):
    name = "pause"
    help = "lets no worker start jobs of these queues; what runs goes on"
    change = staticmethod(queues.pause)
    participle = "paused"


class Resume(_OfNames):
    name = "resume"
    help = "lets workers start jobs of these queues again"
    change = staticmethod(queues.resume)
    participle = "resumed"


class Limit(Subcommand):
    name = "limit"
    help = "lets at most N slots of each worker run jobs of a queue"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("queue", type=arguments.queue, metavar="QUEUE")
        parser.add_argument("slots", type=arguments.slots, metavar="N|none", help="slots of each worker; none: all")

    def run(self, call: Call) -> None:
        queues.set_limit(call["queue"], call["slots"], using=call.using)
        if call.screen.is_json:
            call.screen.json({"queue": call["queue"], "slot_limit": call["slots"]})
            return
        limit = "no limit" if call["slots"] is None else f"{call['slots']} slots of each worker"
        call.screen.line(f"{call['queue']}: {limit}.", call.screen.style.SUCCESS)
