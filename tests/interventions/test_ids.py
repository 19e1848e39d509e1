"""Every operation accepts an id, a chain or a job, alone or in an iterable."""

from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.chains import Chain
from django_jobchains.models import Job
from tests.interventions.verbs import CANCEL, VERBS
from tests.support.chains import each, go_on, ship
from tests.support.jobs import tables

pytestmark = pytest.mark.django_db

verbs = pytest.mark.parametrize("verb", VERBS, ids=str)

#: The ways to pass two chains.
FORMS = {
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
WRONG = [
    None,
    7,
    "x",
    UUID(int=7).hex,
    f"{{{UUID(int=7)}}}",
    b"x",
    ["x"],
    [UUID(int=7).hex],
    [None],
    [7],
    [[]],
    [UUID(int=7), "x"],
    {"a": 1},
]


@pytest.mark.parametrize(
    ("verb", "form"), [*((CANCEL, form) for form in FORMS), *((verb, "a generator") for verb in VERBS)], ids=str
)
def test_several_may_be_passed_in_any_form(store, verb, form):
    made = [verb.make(store), verb.make(store)]
    verb.make(store)
    before = tables()[0]
    result = verb.call(FORMS[form](made))
    assert result == (each(made) if verb.returns_ids else None)
    changed = [row for row in before if row not in tables()[0]]
    assert {row["id"] for row in changed} == each(made)


@verbs
def test_many_take_as_many_statements_as_one(store, verb):
    counts = []
    for size in (1, 10):
        made = [verb.make(store) for _ in range(size)]
        with CaptureQueriesContext(connection) as queries:
            verb.call(made)
        counts.append(len(queries))
        Job.objects.all().delete()
    assert counts[0] == counts[1]


@verbs
def test_one_may_be_passed_without_a_list(store, verb):
    first, second, third, fourth = (verb.make(store) for _ in range(4))
    for chain, given in ((first, first.id), (second, second), (third, third.current_job), (fourth, str(fourth.id))):
        before = tables()[0]
        assert verb.call(given) == ({chain.id} if verb.returns_ids else None)
        assert tables()[0] != before


@verbs
def test_an_empty_list_changes_nothing(store, verb):
    verb.make(store)
    before = tables()
    assert verb.call([]) == (set() if verb.returns_ids else None)
    assert tables() == before


@verbs
def test_other_values_are_refused_without_a_query(store, verb):
    with CaptureQueriesContext(connection) as queries:
        for wrong in WRONG:
            with pytest.raises((TypeError, ValueError), match=r"a uuid\.UUID, its string, a Chain or a Job"):
                verb.call(wrong)
    assert len(queries) == 0


@verbs
def test_the_lowest_and_highest_ids_are_only_unknown(verb):
    for id_ in (UUID(int=0), UUID(int=2**128 - 1)):
        with pytest.raises(verb.not_found):
            verb.call(id_)


def test_a_job_that_is_passed_twice_moves_once(store):
    chain = ship.enqueue()
    go_on(chain)
    chains.cancel(chain)
    job = chain.refresh().current_job
    assert chains.retry([chain.id, job, chain, job.id, chain.jobs[0]]) == {job.id}
    chains.run_now([chain, job.id])
    assert Job.objects.get(pk=job.id).status == "pending"


def id_of_locked(chain_id):
    with chains.current_job(chain_id) as current:
        return current.job.chain_id


async def aid_of_locked(chain_id):
    async with chains.acurrent_job(chain_id) as current:
        return current.job.chain_id


#: Calls that accept one chain. Each returns the id of the chain that it found.
READS = {
    "get": lambda id_: chains.get(id_).id,
    "aget": lambda id_: async_to_sync(chains.aget)(id_).id,
    "complete": lambda id_: chains.complete(id_).id,
    "acomplete": lambda id_: async_to_sync(chains.acomplete)(id_).id,
    "current_job": id_of_locked,
    "acurrent_job": async_to_sync(aid_of_locked),
    "Job.objects.of_chain": lambda id_: Job.objects.of_chain(id_).first().chain_id,
}
reads = pytest.mark.parametrize("read", READS.values(), ids=READS)


@reads
@pytest.mark.parametrize("form", ["id", "string", "chain", "first job", "later job"])
def test_one_chain_may_be_passed_by_its_id_itself_or_a_job(read, form):
    chain = ship.enqueue()
    go_on(chain)
    forms = {"id": chain.id, "string": str(chain.id), "chain": chain}
    assert read((forms | {"first job": chain.jobs[0], "later job": chain.jobs[1]})[form]) == chain.id


@pytest.mark.parametrize("name", [name for name in READS if name != "Job.objects.of_chain"])
def test_the_id_of_a_later_job_stands_for_its_chain(name):
    chain = ship.enqueue()
    go_on(chain)
    go_on(chain)
    assert READS[name](chain.jobs[1].id) == chain.id


@reads
def test_other_values_are_not_a_chain(read):
    with CaptureQueriesContext(connection) as queries:
        for wrong in [*WRONG, [UUID(int=7)]]:
            with pytest.raises((TypeError, ValueError), match=r"a uuid\.UUID, its string, a Chain or a Job"):
                read(wrong)
    assert len(queries) == 0


@pytest.mark.parametrize("wrong", [5, [], {"approved": True}])
def test_an_expected_type_must_be_a_job_type_or_a_name(wrong):
    chain = ship.enqueue()
    with (
        pytest.raises(TypeError, match="A job type is given as a JobType or by its name"),
        chains.current_job(chain, wrong),
    ):
        pass
    with pytest.raises(TypeError, match="A job type is given as a JobType or by its name"):
        chains.complete(chain, None, wrong)
