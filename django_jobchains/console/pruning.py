"""``prune``: deletes what ended long ago."""

from argparse import ArgumentParser

from django_jobchains import chains
from django_jobchains.console import arguments
from django_jobchains.console.progress import Progress
from django_jobchains.console.subcommand import Call, Subcommand
from django_jobchains.console.words import counted

STATUSES = ("completed", "cancelled")


class Prune(Subcommand):
    name = "prune"
    help = "deletes chains that ended long ago"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--older-than", required=True, type=arguments.duration, metavar="30d", help="ended at least so long ago"
        )
        parser.add_argument(
            "--status",
            action="append",
            type=arguments.final_status,
            metavar="STATUS",
            help="completed, failed or cancelled; repeat it (completed and cancelled)",
        )
        parser.add_argument("--type", action="append", metavar="NAME", help="chains of this type; repeat it (all)")
        parser.add_argument(
            "--batch", type=arguments.batch, default=1_000, metavar="N", help="chains of one transaction (1000)"
        )
        parser.add_argument("--dry-run", action="store_true", help="count them only")

    def run(self, call: Call) -> None:
        with Progress(call.screen.errors, "chains") as progress:
            count = chains.prune(
                call["older_than"],
                call["status"] or STATUSES,
                call["type"],
                batch=call["batch"],
                dry_run=call["dry_run"],
                using=call.using,
                on_batch=progress.show,
            )
        screen = call.screen
        if screen.is_json:
            screen.json({"would_be_deleted" if call["dry_run"] else "deleted": count})
        else:
            done = "would be deleted" if call["dry_run"] else "deleted"
            screen.line(f"{counted(count, 'chain')} {done}.", screen.style.SUCCESS)
