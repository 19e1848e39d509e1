"""Break the given guards, or all, one by one, and report whether tests fail."""

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.mutations.mutation import Mutation, all_mutations
from tests.mutations.runs import Result, run_mutation, unfounded
from tests.mutations.trees import copy_working_tree
from tests.support.servers.postgresql import machine_server


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="a patch in tests/mutations/patches (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="how many to run at the same time (default: 2)")
    options = parser.parse_args()
    mutations = chosen(parser, options.names)
    with tempfile.TemporaryDirectory(prefix="jobchains-mutations-", ignore_cleanup_errors=True) as folder:
        pristine = Path(folder) / "pristine"
        pristine.mkdir()
        copy_working_tree(pristine)
        with databases(mutations) as urls, ThreadPoolExecutor(options.jobs) as pool:
            results = report(pool.map(lambda mutation: run_mutation(mutation, pristine, urls), mutations))
            problem = unfounded(results, pristine, urls)
    if problem:
        print(f"These tests fail without a patch too:\n{problem}")
    missed = sum(result.outcome != "caught" for result in results)
    print(f"{missed} of {len(results)} not caught." if missed else f"All {len(results)} caught.")
    return int(bool(missed or problem))


def chosen(parser: argparse.ArgumentParser, names: Sequence[str]) -> list[Mutation]:
    known = {mutation.name: mutation for mutation in all_mutations()}
    if unknown := [name for name in names if name not in known]:
        parser.error(f"There is no patch named {', '.join(unknown)}.")
    return [known[name] for name in names] or list(known.values())


@contextmanager
def databases(mutations: Sequence[Mutation]) -> Iterator[dict[str, str]]:
    """Yield the value of JOBCHAINS_TEST_DATABASE for each database that the mutations need."""
    needed = {mutation.database for mutation in mutations}
    urls = {"sqlite": "sqlite"} if "sqlite" in needed else {}
    if "postgresql" not in needed:
        yield urls
        return
    with machine_server() as postgresql:
        yield {**urls, "postgresql": postgresql}


def report(results: Iterable[Result]) -> list[Result]:
    """Print each result as soon as it is known."""
    shown = []
    for number, result in enumerate(results, 1):
        print(f"{number:3} {result}", flush=True)
        shown.append(result)
    return shown


sys.exit(main())
