from typing import Any

from django.core.management.base import BaseCommand, CommandParser


class Command(BaseCommand):
    help = "Enqueues from several threads at once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind")
        parser.add_argument("--threads", type=int, required=True)
        parser.add_argument("--jobs", type=int, required=True, help="number of jobs of each thread")

    def handle(self, *args: Any, **options: Any) -> None:
        from benchmarks.writing import write

        write(options["kind"], options["threads"], options["jobs"])
