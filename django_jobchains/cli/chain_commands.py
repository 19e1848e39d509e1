"""``retry``, ``cancel``, ``run-now`` and ``delete``: change the chains and jobs with the given ids."""

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from django.core.management.base import CommandError

from django_jobchains import chains
from django_jobchains.chains import Job
from django_jobchains.cli import converters
from django_jobchains.cli.formatting import counted
from django_jobchains.cli.screen import ProgressBar, Screen
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.exceptions import JobchainsError

#: The number of ids in one call of the API, and so in one transaction.
BATCH_SIZE = 500
MAX_NAMED = 5


@dataclass(frozen=True)
class Target:
    """The id of a chain or a job, and the chain that it belongs to."""

    given: UUID
    chain_id: UUID


def find_targets(ids: Sequence[UUID], using: str) -> list[Target]:
    """Return the targets in the order of the ids. Unknown ids are an error, before anything is changed."""
    found: dict[UUID, UUID] = {}
    for batch in batches(ids):
        found.update(Job.objects.using(using).filter(pk__in=batch).values_list("id", "chain_id"))
    if missing := [id_ for id_ in ids if id_ not in found]:
        raise unknown_ids("chain or job", missing)
    return [Target(id_, found[id_]) for id_ in ids]


def unknown_ids(noun: str, missing: Sequence[Any]) -> CommandError:
    more = f" and {len(missing) - MAX_NAMED:,} more" if len(missing) > MAX_NAMED else ""
    return CommandError(f"No {noun} {', '.join(map(str, missing[:MAX_NAMED]))}{more}. Nothing was changed.")


class ChainCommand(Subcommand):
    #: The words in "3 jobs retried".
    noun: ClassVar[str] = "job"
    participle: ClassVar[str]
    #: Why some were not changed.
    reason: ClassVar[str]

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "ids",
            nargs="+",
            type=converters.id_or_dash,
            metavar="ID",
            help="of chains or jobs; - reads them from stdin",
        )

    def change(self, targets: Sequence[Target], call: Invocation) -> set[UUID]:
        """Change the targets, and return the ids of those that were changed."""
        raise NotImplementedError

    def run(self, call: Invocation) -> None:
        targets = find_targets(converters.all_ids(call["ids"]), call.using)
        changed: set[UUID] = set()
        with ProgressBar(call.screen.errors, self.participle) as progress:
            for number, batch in enumerate(batches(targets)):
                done = number * BATCH_SIZE
                progress.show(done, done / len(targets))
                changed |= self._change(batch, call, len(changed))
        self._report(len(targets), changed, call)

    def _change(self, batch: Sequence[Target], call: Invocation, before: int) -> set[UUID]:
        try:
            return self.change(batch, call)
        except JobchainsError as error:
            done = f" {counted(before, self.noun)} {self.participle} before this error." if before else ""
            raise CommandError(f"{error}{done}") from error

    def _report(self, asked: int, changed: set[UUID], call: Invocation) -> None:
        names = (self.noun, self.participle, self.reason)
        report_changes(call.screen, asked, len(changed), *names, sorted(changed))


def report_changes(
    screen: Screen, asked: int, changed: int, noun: str, participle: str, reason: str, value: Any
) -> None:
    """Write how many were changed. ``value``: what the JSON contains about them."""
    if screen.is_json:
        screen.json({participle.replace(" ", "_"): value, "asked": asked})
    elif changed:
        screen.line(f"{counted(changed, noun)} {participle}.", screen.style.SUCCESS)
    if not changed:
        raise CommandError(f"Nothing {participle}: {reason}.")
    if changed < asked and not screen.is_json:
        screen.line(f"{counted(asked - changed, 'id')} not changed: {reason}.", screen.style.WARNING)


class RetryCommand(ChainCommand):
    name = "retry"
    help = "makes failed and cancelled jobs due now"
    participle = "retried"
    reason = "only failed and cancelled jobs can be retried"

    def change(self, targets: Sequence[Target], call: Invocation) -> set[UUID]:
        return chains.retry([target.given for target in targets], using=call.using)


class CancelCommand(ChainCommand):
    name = "cancel"
    help = "cancels chains; a running job is asked to stop"
    noun = "chain"
    participle = "cancelled"
    reason = "chains that have ended cannot be cancelled"

    def change(self, targets: Sequence[Target], call: Invocation) -> set[UUID]:
        return chains.cancel([target.given for target in targets], using=call.using)


class RunNowCommand(ChainCommand):
    name = "run-now"
    help = "makes jobs due that are scheduled or waiting for their backoff"
    participle = "made due"
    reason = "only pending jobs can be made due"

    def change(self, targets: Sequence[Target], call: Invocation) -> set[UUID]:
        chains.run_now([target.given for target in targets], using=call.using)
        return {target.given for target in targets}


class DeleteCommand(ChainCommand):
    name = "delete"
    help = "deletes chains with all their jobs, all or nothing"
    noun = "chain"
    participle = "deleted"
    reason = "they no longer exist"

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--cascade", action="store_true", help="delete the chains that they waited for, too")

    def run(self, call: Invocation) -> None:
        """Delete all chains in one call, because some may be blockers of others."""
        targets = find_targets(converters.all_ids(call["ids"]), call.using)
        for target in targets:
            if target.given != target.chain_id:
                raise CommandError(
                    f"{target.given} is a later step of chain {target.chain_id}. To delete the chain, give its id."
                )
        self._report(len(targets), self._change(targets, call, 0), call)

    def change(self, targets: Sequence[Target], call: Invocation) -> set[UUID]:
        return chains.delete([target.given for target in targets], cascade=call["cascade"], using=call.using)


def batches(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (items[start : start + BATCH_SIZE] for start in range(0, len(items), BATCH_SIZE))
