"""``complete``: completes a job from outside, with the output that its handler would have returned."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_jobchains import chains
from django_jobchains.cli import converters
from django_jobchains.cli.chain_commands import Target, find_targets
from django_jobchains.cli.subcommand import Invocation, Subcommand
from django_jobchains.exceptions import InvalidOutput, JobchainsError, JobTypeNotFound
from django_jobchains.payloads import Codec
from django_jobchains.registry.registry import get_registry


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
        parser.add_argument("--type", metavar="NAME", help="only if the current job is of this type")

    def run(self, call: Invocation) -> None:
        text = converters.json_on_input() if call["output"] == "-" else call["output"]
        [target] = find_targets([call["id"]], call.using)
        try:
            job = _complete(target, text, call)
        except JobchainsError as error:
            raise CommandError(str(error)) from error
        if call.screen.is_json:
            call.screen.json({"completed": job.id, "chain": job.chain_id, "type": job.type_name})
        else:
            text = f"{job.type_name} {job.id} and its chain completed."
            call.screen.line(text, call.screen.style.SUCCESS)


def _complete(target: Target, text: str, call: Invocation) -> chains.Job:
    with chains.current_job(target.chain_id, call["type"], using=call.using) as current:
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
