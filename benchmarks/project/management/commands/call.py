import json
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils.module_loading import import_string


class Command(BaseCommand):
    help = "Calls a function of the benchmarks, and prints what it returns as JSON."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("function", help="its path below benchmarks, such as bare.drain")
        parser.add_argument("arguments", type=json.loads)

    def handle(self, *args: Any, **options: Any) -> None:
        returned = import_string(f"benchmarks.{options['function']}")(**options["arguments"])
        self.stdout.write(json.dumps(returned))
