"""What every verb takes: an id, a chain or a job, one or several."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.models import Job
from django_jobchains.store import Store
from tests.interventions.chains_at import each, everything, go_on, ship
from tests.interventions.verbs import VERBS, Verb

pytestmark = pytest.mark.django_db

verbs = pytest.mark.parametrize("verb", VERBS, ids=str)

#: Two chains, as they may be given.
FORMS: dict[str, Callable[[list[Chain]], Any]] = {
    "ids": lambda made: [chain.id for chain in made],
    "chains": lambda made: made,
    "jobs": lambda made: [chain.current_job for chain in made],
    "a tuple": lambda made: tuple(made),
    "a set of ids": lambda made: each(made),
    "a generator": lambda made: (chain.id for chain in made),
    "a dictionary's keys": lambda made: dict.fromkeys(each(made)).keys(),
    "a query of chains": lambda made: Chain.objects.filter(pk__in=each(made)),
    "a query of jobs": lambda made: Job.objects.filter(chain_id__in=each(made)),
    "a query of ids": lambda made: Job.objects.filter(pk__in=each(made)).values_list("pk", flat=True),
    "mixed": lambda made: [made[0].id, made[1]],
    "one of them twice": lambda made: [made[0], made[1].id, made[0].id],
}
WRONG: list[Any] = [
    None,
    7,
    "x",
    str(uuid4()),
    b"x",
    ["x"],
    [str(uuid4())],
    [None],
    [7],
    [[]],
    [uuid4(), "x"],
    {"a": 1},
]


@verbs
@pytest.mark.parametrize("form", FORMS)
def test_several_may_be_given_in_any_form(store: Store, verb: Verb, form: str) -> None:
    made = [verb.make(store), verb.make(store)]
    other = verb.make(store)
    before = everything()[0]
    result = verb.call(FORMS[form](made))
    assert result == (each(made) if verb.returns_ids else None)
    changed = [row for row in before if row not in everything()[0]]
    assert {row["id"] for row in changed} == each(made)
    other.refresh()


@verbs
@pytest.mark.parametrize("form", ["id", "chain", "job"])
def test_one_may_be_given_without_a_list(store: Store, verb: Verb, form: str) -> None:
    chain = verb.make(store)
    before = everything()[0]
    given: Any = {"id": chain.id, "chain": chain, "job": chain.current_job}[form]
    assert verb.call(given) == ({chain.id} if verb.returns_ids else None)
    assert everything()[0] != before


@verbs
def test_none_at_all_changes_nothing(store: Store, verb: Verb) -> None:
    verb.make(store)
    before = everything()
    assert verb.call([]) == (set() if verb.returns_ids else None)
    assert everything() == before


@verbs
@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_anything_else_is_an_error_and_asks_nothing(store: Store, verb: Verb, wrong: Any) -> None:
    with CaptureQueriesContext(connection) as queries, pytest.raises(TypeError, match=r"uuid\.UUID"):
        verb.call(wrong)
    assert len(queries) == 0


@verbs
def test_an_unknown_id_among_others_is_an_error_and_none_is_changed(store: Store, verb: Verb) -> None:
    made = [verb.make(store), verb.make(store)]
    before, unknown = everything(), uuid4()
    with pytest.raises(verb.not_found, match=str(unknown)) as caught:
        verb.call([made[0], unknown, made[1]])
    assert unknown in vars(caught.value).values()
    assert everything() == before


@verbs
def test_an_id_that_looks_like_no_other_is_only_unknown(verb: Verb) -> None:
    for id_ in (UUID(int=0), UUID(int=2**128 - 1)):
        with pytest.raises(verb.not_found):
            verb.call(id_)


@pytest.mark.parametrize("name", ["cancel", "delete"])
def test_the_id_of_a_continuation_is_no_chains(name: str) -> None:
    chain = ship.enqueue()
    go_on(chain)
    with pytest.raises(chains.ChainNotFound):
        getattr(chains, name)(chain.refresh().current_job_id)
    assert chain.refresh().status == "pending"


@pytest.mark.parametrize("name", ["cancel", "delete"])
def test_where_chains_are_asked_for_a_job_stands_for_its_chain(name: str) -> None:
    chain = ship.enqueue()
    go_on(chain)
    assert getattr(chains, name)(chain.refresh().current_job) == {chain.id}


@pytest.mark.parametrize("name", ["retry", "run_now"])
def test_where_jobs_are_asked_for_a_chain_stands_for_its_current_job(name: str) -> None:
    """Its first job, which has the same id, is completed: nobody can mean that."""
    chain = ship.enqueue()
    go_on(chain, delay=3600)
    if name == "retry":
        chains.cancel(chain)
    before = chain.refresh().current_job
    getattr(chains, name)(chain)
    after = chain.refresh().current_job
    assert (after.chain_index, after.status) == (1, "pending")
    assert after.run_at < before.run_at


def completed(chain_id: Any) -> UUID:
    with chains.complete(chain_id) as current:
        return current.job.chain_id


async def acompleted(chain_id: Any) -> UUID:
    return await chains.acomplete(chain_id, lambda current: current.job.chain_id)


#: The calls that take the id of one chain; each returns something that shows which chain it found.
READS: dict[str, Callable[[Any], Any]] = {
    "get": lambda id_: chains.get(id_).id,
    "aget": lambda id_: async_to_sync(chains.aget)(id_).id,
    "complete": completed,
    "acomplete": async_to_sync(acompleted),
    "Job.objects.of_chain": lambda id_: Job.objects.of_chain(id_).first().chain_id,  # type: ignore[union-attr]
}
reads = pytest.mark.parametrize("read", READS.values(), ids=READS)


@reads
def test_one_chain_is_named_by_its_id_itself_or_one_of_its_jobs(read: Callable[[Any], Any]) -> None:
    chain = ship.enqueue()
    go_on(chain)
    assert {read(given) for given in (chain.id, chain, chain.refresh().current_job)} == {chain.id}


@reads
@pytest.mark.parametrize("wrong", [*WRONG, [uuid4()]], ids=repr)
def test_anything_else_is_no_chain(read: Callable[[Any], Any], wrong: Any) -> None:
    with CaptureQueriesContext(connection) as queries, pytest.raises(TypeError, match=r"expects a uuid\.UUID"):
        read(wrong)
    assert len(queries) == 0


@pytest.mark.parametrize("objects", [Job.objects, Chain.objects], ids=["jobs", "chains"])
def test_what_is_blocked_by_a_job_is_what_its_chain_blocks(objects: Any) -> None:
    chain = ship.enqueue()
    blocked = ship.enqueue(blockers=[chain])
    go_on(chain)
    found = [objects.blocked_by(given).get().pk for given in (chain, chain.id, chain.refresh().current_job)]
    assert set(found) == {blocked.id}


@pytest.mark.parametrize("wrong", [5, [], {"approved": True}])
def test_the_expected_type_of_a_chain_is_a_type_or_a_name(wrong: Any) -> None:
    chain = ship.enqueue()
    with (
        pytest.raises(TypeError, match="A job type is given as a JobType or by its name"),
        chains.complete(chain, wrong),
    ):
        pass
