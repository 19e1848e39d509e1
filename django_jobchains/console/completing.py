"""``complete``: a person says what a job would have returned."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_jobchains import chains
from django_jobchains.console import arguments
from django_jobchains.console.subcommand import Call, Subcommand
from django_jobchains.console.verbs import Target, targets_of
from django_jobchains.exceptions import InvalidOutput, JobchainsError, JobTypeNotFound
from django_jobchains.payloads import Codec
from django_jobchains.processors import get_registry


class Complete(Subcommand):
    name = "complete"
    help = "completes the job that a chain is at, and with it the chain"

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("id", type=arguments.id_of, metavar="ID", help="of the chain, or of the job it is at")
        parser.add_argument(
            "--output",
            required=True,
            type=arguments.json_text,
            metavar="JSON",
            help="what the job returns; - reads it from stdin",
        )
        parser.add_argument("--type", metavar="NAME", help="only if the job it is at is of this type")

    def run(self, call: Call) -> None:
        text = arguments.json_on_input() if call["output"] == "-" else call["output"]
        [target] = targets_of([call["id"]], call.using)
        try:
            job = _complete(target, text, call)
        except JobchainsError as error:
            raise CommandError(str(error)) from error
        if call.screen.is_json:
            call.screen.json({"completed": job.id, "chain": job.chain_id, "type": job.type_name})
        else:
            text = f"{job.type_name} {job.id} completed, and its chain with it."
            call.screen.line(text, call.screen.style.SUCCESS)


def _complete(target: Target, text: str, call: Call) -> chains.Job:
    with chains.complete(target.chain_id, call["type"], using=call.using) as current:
        job = current.job
        if target.given not in (target.chain_id, job.id):
            raise CommandError(f"Job {target.given} is not the one its chain is at: that is {job.type_name} {job.id}.")
        current.finish(_output(job.type_name, text))
    return job


def _output(type_name: str, text: str) -> Any:
    """The value as the handler would return it."""
    try:
        codec = get_registry().job_type(type_name).output_codec
    except JobTypeNotFound:
        codec = Codec()
    return codec.decode(text, InvalidOutput)
