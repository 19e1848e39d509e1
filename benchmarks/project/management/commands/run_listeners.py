from typing import Any

from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    help = "Listens for wake-ups with several sessions and discards them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("server")
        parser.add_argument("number", type=int)

    def handle(self, *args: Any, **options: Any) -> None:
        from benchmarks.sessions import listen

        listen(options["server"], options["number"])
