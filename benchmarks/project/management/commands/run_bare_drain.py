from typing import Any

from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    help = "Runs the floor of a drain cell."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind")
        parser.add_argument("type_name")
        parser.add_argument("--threads", type=int, default=1)

    def handle(self, *args: Any, **options: Any) -> None:
        from benchmarks.bare import DRAINS
        from benchmarks.project import marks

        DRAINS[options["kind"]](options["type_name"], options["threads"])
        marks.drained()
