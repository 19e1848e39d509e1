import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    help = "Enqueues single jobs while workers wait, and prints the latencies."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("signals")
        parser.add_argument("--database", default="default")
        parser.add_argument("--load", type=json.loads, required=True, help="the fields of waker.Load")
        parser.add_argument("--inside", action="store_true")

    def handle(self, *args: Any, **options: Any) -> None:
        from benchmarks.seen import Load
        from benchmarks.waker import wake

        load = Load(**options["load"])
        seen = wake(load, options["signals"], options["database"], inside=options["inside"])
        self.stdout.write(json.dumps(seen))
