"""``retry``, ``cancel``, ``run-now`` and ``delete``: what people do to chains and jobs they name."""

from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar
from uuid import UUID

from django.core.management.base import CommandError

from django_jobchains import chains
from django_jobchains.chains import Chain, Job
from django_jobchains.console import arguments
from django_jobchains.console.progress import Progress
from django_jobchains.console.subcommand import Call, Subcommand
from django_jobchains.console.words import counted
from django_jobchains.exceptions import JobchainsError

#: Ids of one call of the API, which is one transaction.
AT_ONCE = 500
MOST_NAMED = 5


@dataclass(frozen=True)
class Target:
    """What an id stands for: a chain when it is that of its first job, or else that job of it."""

    given: UUID
    chain_id: UUID
    using: str

    @property
    def job(self) -> Chain | UUID:
        """A chain stands for its current job."""
        if self.given == self.chain_id:
            return Chain.partly_known(self.using, id=self.chain_id)
        return self.given


def targets_of(ids: Sequence[UUID], using: str) -> list[Target]:
    """In the order of the ids; unknown ones are an error before anything is changed."""
    found: dict[UUID, UUID] = {}
    for part in _parts(ids):
        found.update(Job.objects.using(using).filter(pk__in=part).values_list("id", "chain_id"))
    if missing := [str(id_) for id_ in ids if id_ not in found]:
        more = f" and {len(missing) - MOST_NAMED:,} more" if len(missing) > MOST_NAMED else ""
        raise CommandError(f"No chain or job {', '.join(missing[:MOST_NAMED])}{more}. Nothing was changed.")
    return [Target(id_, found[id_], using) for id_ in ids]


class Verb(Subcommand):
    #: As in "3 jobs retried".
    noun: ClassVar[str] = "job"
    participle: ClassVar[str]
    #: Why some were left as they are.
    otherwise: ClassVar[str]

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "ids", nargs="+", type=arguments.id_or_dash, metavar="ID", help="of chains or jobs; - reads them from stdin"
        )

    def change(self, targets: Sequence[Target], call: Call) -> set[UUID]:
        """Does it to some; returns what was changed."""
        raise NotImplementedError

    def run(self, call: Call) -> None:
        targets = targets_of(arguments.all_ids(call["ids"]), call.using)
        changed: set[UUID] = set()
        with Progress(call.screen.errors, self.participle) as progress:
            for done, part in _progressing(targets):
                progress.show(done, done / len(targets))
                changed |= self._change(part, call, len(changed))
        self._tell(len(targets), changed, call)

    def _change(self, part: Sequence[Target], call: Call, before: int) -> set[UUID]:
        try:
            return self.change(part, call)
        except JobchainsError as error:
            raise CommandError(
                f"{error} {before:,} were {self.participle} before." if before else str(error)
            ) from error

    def _tell(self, asked: int, changed: set[UUID], call: Call) -> None:
        screen = call.screen
        if screen.is_json:
            screen.json({self.participle.replace(" ", "_"): sorted(changed), "asked": asked})
        elif changed:
            screen.line(f"{counted(len(changed), self.noun)} {self.participle}.", screen.style.SUCCESS)
        if not changed:
            raise CommandError(f"Nothing {self.participle}: {self.otherwise}.")
        if len(changed) < asked and not screen.is_json:
            screen.line(
                f"{counted(asked - len(changed), 'id')} left as before: {self.otherwise}.", screen.style.WARNING
            )


class Retry(Verb):
    name = "retry"
    help = "makes failed and cancelled jobs due now"
    participle = "retried"
    otherwise = "only what failed or was cancelled is retried"

    def change(self, targets: Sequence[Target], call: Call) -> set[UUID]:
        return chains.retry([target.job for target in targets], using=call.using)


class Cancel(Verb):
    name = "cancel"
    help = "cancels chains; a running job is asked to stop"
    noun = "chain"
    participle = "cancelled"
    otherwise = "what has ended stays as it is"

    def change(self, targets: Sequence[Target], call: Call) -> set[UUID]:
        return chains.cancel([target.chain_id for target in targets], using=call.using)


class RunNow(Verb):
    name = "run-now"
    help = "makes jobs due that are scheduled or back off"
    participle = "made due"
    otherwise = "only pending jobs can be"

    def change(self, targets: Sequence[Target], call: Call) -> set[UUID]:
        chains.run_now([target.job for target in targets], using=call.using)
        return {target.given for target in targets}


class Delete(Verb):
    name = "delete"
    help = "deletes chains with all that is theirs, all of them or none"
    noun = "chain"
    participle = "deleted"
    otherwise = "they are gone"

    def add_arguments(self, parser: ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--cascade", action="store_true", help="the chains they waited for too")

    def run(self, call: Call) -> None:
        """In one call, for chains of the set may need each other."""
        targets = targets_of(arguments.all_ids(call["ids"]), call.using)
        for target in targets:
            if target.given != target.chain_id:
                raise CommandError(
                    f"{target.given} is a later step of chain {target.chain_id}: to delete the whole chain give its id."
                )
        self._tell(len(targets), self._change(targets, call, 0), call)

    def change(self, targets: Sequence[Target], call: Call) -> set[UUID]:
        return chains.delete([target.chain_id for target in targets], cascade=call["cascade"], using=call.using)


def _progressing(targets: Sequence[Target]) -> Iterator[tuple[int, Sequence[Target]]]:
    done = 0
    for part in _parts(targets):
        yield done, part
        done += len(part)


def _parts(all_: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (all_[start : start + AT_ONCE] for start in range(0, len(all_), AT_ONCE))
