"""``prune``: deletes chains whose retention has expired."""

from argparse import ArgumentParser

from django_jobchains import chains
from django_jobchains.cli import converters
from django_jobchains.cli.formatting import counted
from django_jobchains.cli.screen import ProgressBar
from django_jobchains.cli.subcommand import Invocation, Subcommand


class PruneCommand(Subcommand):
    name = "prune"
    help = "deletes chains whose retention has expired or, with --older-than, that ended long ago"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--older-than",
            type=converters.duration,
            metavar="30d",
            help="only chains that ended at least this long ago, whatever the retention of their types",
        )
        parser.add_argument(
            "--status",
            action="append",
            type=converters.final_status,
            metavar="STATUS",
            help="completed, failed or cancelled; may be repeated (all, or with --older-than completed and cancelled)",
        )
        parser.add_argument("--type", action="append", metavar="NAME", help="only this type; may be repeated (all)")
        parser.add_argument(
            "--batch", type=converters.batch, default=1_000, metavar="N", help="chains per transaction (1000)"
        )
        parser.add_argument("--dry-run", action="store_true", help="only count them")

    def run(self, call: Invocation) -> None:
        with ProgressBar(call.screen.errors, "chains") as progress:
            count = chains.prune(
                call["older_than"],
                call["status"],
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
