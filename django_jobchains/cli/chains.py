"""``enqueue``, ``retry``, ``cancel``, ``run-now``, ``delete``, ``complete`` and ``prune``: change chains and jobs."""

import json
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from django.core.management.base import CommandError
from django.db import transaction

from django_jobchains import chains
from django_jobchains.chains import Chain, Job
from django_jobchains.chains.pruning import MAX_BATCH_SIZE
from django_jobchains.cli import converters
from django_jobchains.cli.screen import counted
from django_jobchains.cli.subcommand import Invocation, Subcommand, batches, check_known, in_batches, report_changes
from django_jobchains.declare.registry import get_registry
from django_jobchains.exceptions import InvalidInput, InvalidOutput, JobchainsError, JobTypeNotFound
from django_jobchains.payloads.schemas import example_of
from django_jobchains.payloads.types import Codec
from django_jobchains.store import Store, get_store
from django_jobchains.store.errors import retried

#: The options that are passed to ``chains.enqueue``.
OPTIONS = ("queue", "priority", "delay", "run_at", "expires", "deduplicate")


class EnqueueCommand(Subcommand):
    name = "enqueue"
    help = "starts a chain, and prints its id"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("type", metavar="TYPE", help="name of a job type that can start a chain")
        parser.add_argument(
            "--input",
            type=converters.json_text,
            default="null",
            metavar="JSON",
            help="the input of the job (null); - reads it from stdin",
        )
        parser.add_argument("--queue", type=converters.queue, metavar="QUEUE", help="queue (the type's)")
        parser.add_argument("--priority", type=converters.priority, metavar="N", help="higher runs first (the type's)")
        start = parser.add_mutually_exclusive_group()
        start.add_argument(
            "--delay", type=converters.duration, metavar="DURATION", help="how long to wait before it is due: 5m"
        )
        start.add_argument(
            "--run-at", type=converters.time, metavar="TIME", help="when it is due, such as 2026-12-24T18:00+01:00"
        )
        parser.add_argument(
            "--expires",
            type=converters.expiry,
            metavar="DURATION|TIME",
            help="cancel the job if it has not started this long after it is due, or at this time",
        )
        parser.add_argument(
            "--deduplicate",
            type=converters.deduplication_key,
            metavar="KEY",
            help="if an incomplete chain of this type has the same key, print its id instead of starting another one",
        )

    def run(self, call: Invocation) -> None:
        text = converters.json_or_input(call["input"])
        try:
            chain = _enqueue(call, text)
        except (JobchainsError, ValueError) as error:
            raise CommandError(str(error)) from error
        if call.screen.is_json:
            call.screen.json({"chain": chain.id, "type": chain.type_name, "deduplicated": chain.deduplicated})
            return
        call.screen.line(str(chain.id))
        if chain.deduplicated:
            call.screen.errors.write("A chain with this key already exists. No chain was started.")


def _enqueue(call: Invocation, text: str) -> Chain:
    job_type = get_registry().job_type(call["type"])
    options = {name: call[name] for name in OPTIONS if call[name] is not None}
    with transaction.atomic(using=call.using):
        return chains.enqueue(job_type, _input(job_type.input_codec, text), using=call.using, **options)


def _input(codec: Codec, text: str) -> Any:
    """Decode the JSON into the input that a program would pass."""
    try:
        return codec.decode(text, InvalidInput)
    except InvalidInput as error:
        example = json.dumps(example_of(codec.json_schema()))
        raise CommandError(f"{error} Pass the input as JSON, such as --input '{example}'.") from error


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
    check_known("chain or job", ids, found)
    return [Target(id_, found[id_]) for id_ in ids]


class ChainCommand(Subcommand):
    #: What the ids are of, for the help.
    ids: ClassVar[str] = "of chains or jobs"
    #: The words in "3 jobs retried".
    noun: ClassVar[str] = "job"
    participle: ClassVar[str]
    #: Why some were not changed.
    reason: ClassVar[str]
    #: Changes the jobs or chains with the given ids, and returns the ids of those that were changed.
    change: ClassVar[Callable[..., set[UUID]]]

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "ids",
            nargs="+",
            type=converters.id_or_dash,
            metavar="ID",
            help=f"{self.ids}; - reads them from stdin",
        )

    def run(self, call: Invocation) -> None:
        targets = find_targets(converters.all_ids(call["ids"]), call.using)
        changed: set[UUID] = set()

        def change(batch: Sequence[Target]) -> None:
            changed.update(self._change(batch, call, len(changed)))

        in_batches(targets, self.participle, call.screen, change)
        self._report(len(targets), changed, call)

    def _change(self, batch: Sequence[Target], call: Invocation, before: int = 0, **options: Any) -> set[UUID]:
        try:
            return type(self).change([target.given for target in batch], using=call.using, **options)
        except JobchainsError as error:
            done = f" {counted(before, self.noun)} {self.participle} before this error." if before else ""
            raise CommandError(f"{error}{done}") from error

    def _report(self, asked: int, changed: set[UUID], call: Invocation) -> None:
        names = (self.noun, self.participle, self.reason)
        report_changes(call.screen, asked, len(changed), *names, sorted(changed))


class RetryCommand(ChainCommand):
    name = "retry"
    help = "makes failed and cancelled jobs due now"
    participle = "retried"
    reason = "only failed and cancelled jobs can be retried"
    change = staticmethod(chains.retry)


class CancelCommand(ChainCommand):
    name = "cancel"
    help = "cancels chains; a running job is asked to stop"
    noun = "chain"
    participle = "cancelled"
    reason = "chains that have ended cannot be cancelled"
    change = staticmethod(chains.cancel)


class RunNowCommand(ChainCommand):
    name = "run-now"
    help = "makes jobs due that are scheduled or waiting for their backoff, all or nothing"
    participle = "made due"
    reason = "only pending jobs can be made due"

    @staticmethod
    def change(ids: Sequence[UUID], using: str) -> set[UUID]:
        chains.run_now(ids, using=using)
        return set(ids)

    def run(self, call: Invocation) -> None:
        """Make all jobs due in one call: all or nothing."""
        targets = find_targets(converters.all_ids(call["ids"]), call.using)
        self._report(len(targets), self._change(targets, call), call)


class DeleteCommand(ChainCommand):
    name = "delete"
    help = "deletes chains with all their jobs, all or nothing"
    ids = "of chains"
    noun = "chain"
    participle = "deleted"
    reason = "they no longer exist"
    change = staticmethod(chains.delete)

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
        self._report(len(targets), self._change(targets, call, cascade=call["cascade"]), call)


class CompleteCommand(Subcommand):
    name = "complete"
    help = "completes the current job of a chain, and with it the chain"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("id", type=converters.id_of, metavar="ID", help="of the chain or of its current job")
        parser.add_argument(
            "--output",
            required=True,
            type=converters.json_text,
            metavar="JSON",
            help="the output of the job; - reads it from stdin",
        )
        parser.add_argument("--type", metavar="TYPE", help="only if the current job is of this type")

    def run(self, call: Invocation) -> None:
        text = converters.json_or_input(call["output"])
        [target] = find_targets([call["id"]], call.using)
        try:
            job = _complete(get_store(call.using), target, text, call["type"])
        except JobchainsError as error:
            raise CommandError(str(error)) from error
        if call.screen.is_json:
            call.screen.json({"completed": job.id, "chain": job.chain_id, "type": job.type_name})
        else:
            text = f"{job.type_name} {job.id} and its chain completed."
            call.screen.line(text, "success")


@retried
def _complete(store: Store, target: Target, text: str, type_name: str | None) -> Job:
    with chains.current_job(target.chain_id, type_name, using=store.using) as current:
        job = current.job
        if target.given not in (target.chain_id, job.id):
            raise CommandError(f"Job {target.given} is not its chain's current job, which is {job.type_name} {job.id}.")
        current.finish(_output(job.type_name, text))
    return job


def _output(type_name: str, text: str) -> Any:
    """Decode the JSON into the value that the handler would return."""
    try:
        codec = get_registry().job_type(type_name).output_codec
    except JobTypeNotFound:
        codec = Codec()
    return codec.decode(text, InvalidOutput)


class PruneCommand(Subcommand):
    name = "prune"
    help = "deletes chains whose retention has expired or, with --older-than, that ended long ago"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "--older-than",
            type=converters.age,
            metavar="DURATION",
            help="only chains that ended at least this long ago, such as 30d, whatever the retention of their types",
        )
        parser.add_argument(
            "--status",
            action="append",
            type=converters.final_status,
            metavar="STATUS",
            help="completed, failed or cancelled; may be repeated (all, or with --older-than completed and cancelled)",
        )
        parser.add_argument("--type", action="append", metavar="TYPE", help="only this type; may be repeated (all)")
        parser.add_argument(
            "--batch",
            type=converters.integer(1, MAX_BATCH_SIZE),
            default=1_000,
            metavar="N",
            help="chains per transaction (1000)",
        )
        parser.add_argument("--dry-run", action="store_true", help="only count them")

    def run(self, call: Invocation) -> None:
        with call.screen.progress("chains") as show:
            count = chains.prune(
                call["older_than"],
                call["status"],
                call["type"],
                batch=call["batch"],
                dry_run=call["dry_run"],
                using=call.using,
                on_batch=show,
            )
        screen = call.screen
        if screen.is_json:
            screen.json({"would_be_deleted" if call["dry_run"] else "deleted": count})
        else:
            done = "would be deleted" if call["dry_run"] else "deleted"
            screen.line(f"{counted(count, 'chain')} {done}.", "success")
