from typing import Any

from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    help = "Runs the floor of a latency cell."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("type_name")
        parser.add_argument("--signals", default="listen")

    def handle(self, *args: Any, **options: Any) -> None:
        from benchmarks.bare_worker import run

        run(options["type_name"], options["signals"])
