"""A Chain is a snapshot: what was not read is read together, once; it is changed by the ``chains`` functions alone."""

from uuid import uuid4

import pytest

from django_jobchains import chains
from django_jobchains.models import Chain, Job
from tests.attempts.work import committed, elsewhere
from tests.queries.shapes import completed, completed_in_three_steps, continued, pack, pending, statements

pytestmark = pytest.mark.django_db

UNREAD = ("status", "output", "finished_at", "current_job_id", "last_error", "deduplication_key")


def finish(chain: Chain, output: object) -> None:
    with chains.complete(chain.id) as current:
        current.finish(output)


@pytest.mark.parametrize("first", [*UNREAD, "current_job"])
def test_the_first_question_after_enqueueing_reads_all_that_is_unknown(first: str) -> None:
    chain = pack.enqueue({"a": 1})
    assert len(statements(lambda: getattr(chain, first))) == (2 if first == "current_job" else 1)
    assert statements(lambda: [getattr(chain, name) for name in UNREAD]) == []


def test_what_enqueueing_knows_needs_no_reading() -> None:
    chain = pack.enqueue({"a": 1})
    assert statements(lambda: (chain.id, chain.type_name, chain.created_at, chain.deduplicated, str(chain))) == []


def test_status_and_output_are_of_one_moment() -> None:
    chain = pack.enqueue()
    assert chain.status == "pending"
    finish(chain, "done")
    assert (chain.status, chain.output, chain.finished_at) == ("pending", None, None)
    assert (chain.refresh().status, chain.output) == ("completed", "done")


def test_what_is_asked_late_is_as_late() -> None:
    chain = pack.enqueue({"a": 1})
    finish(chain, "done")
    assert (chain.output, chain.status, chain.input) == ("done", "completed", {"a": 1})


@committed
def test_what_another_process_did_is_seen_by_a_refresh_only() -> None:
    chain = pack.enqueue()
    assert chain.status == "pending"
    elsewhere(finish, chain, [1])
    assert chain.status == "pending"
    assert len(statements(chain.refresh)) == 1
    assert (chain.status, chain.output, chain.current_job.status) == ("completed", [1], "completed")


def test_a_refreshed_chain_has_its_new_current_job() -> None:
    chain = pending()
    before = chain.current_job
    with chains.complete(chain.id) as current:
        current.continue_with("shop.ship")
    assert chain.current_job == before
    assert chain.refresh().current_job != before
    assert chain.current_job.type_name == "shop.ship"


def test_refreshing_keeps_that_it_was_deduplicated() -> None:
    key = chains.Deduplicate("k")
    pack.enqueue(deduplicate=key)
    again = pack.enqueue(deduplicate=key)
    assert again.refresh().deduplicated is True


def test_a_part_can_be_refreshed_alone() -> None:
    chain = chains.get(pending().id)
    finish(chain, 7)
    chain.refresh_from_db(fields=["status"])
    assert (chain.status, chain.output) == ("completed", None)


@pytest.mark.parametrize("only", [("status",), ("id", "type_name")])
def test_what_only_left_out_is_read_together(only: tuple[str, ...]) -> None:
    id_ = completed_in_three_steps().id
    chain = Chain.objects.only(*only).get(pk=id_)
    assert len(statements(lambda: (chain.output, chain.input, chain.finished_at, chain.current_job_id))) == 1
    assert chain.output == ["sent"]


def test_a_deleted_chain_is_not_found_when_it_is_asked() -> None:
    read, unread = pending(), pending()
    assert read.status == "pending"
    chains.delete([read.id, unread.id])
    assert read.status == "pending"
    for ask in (lambda: unread.status, read.refresh, unread.refresh, lambda: chains.get(read.id)):
        with pytest.raises(chains.ChainNotFound):
            ask()
    assert not Chain.objects.filter(pk=read.id).exists()


def test_no_chain_was_ever_there() -> None:
    id_ = uuid4()
    with pytest.raises(chains.ChainNotFound, match=str(id_)):
        chains.get(id_)
    with pytest.raises(Chain.DoesNotExist):
        Chain.objects.get(pk=id_)


def test_a_chain_is_one_statement() -> None:
    id_ = completed_in_three_steps().id
    assert len(statements(lambda: chains.get(id_).output)) == 1


def test_select_related_brings_the_current_job() -> None:
    ids = {continued().id, completed().id}

    def ask() -> None:
        found = Chain.objects.select_related("current_job").filter(pk__in=ids)
        assert {chain.id: chain.current_job.chain_index for chain in found}.keys() == ids
        assert sorted(chain.current_job.chain_index for chain in found) == [0, 1]

    assert len(statements(ask)) == 1


def test_prefetching_brings_the_current_jobs_of_a_page() -> None:
    continued(), completed()
    found = statements(lambda: [c.current_job.status for c in Chain.objects.prefetch_related("current_job").page()])
    assert len(found) == 2


def test_a_chain_is_neither_saved_nor_deleted() -> None:
    chain = pending()
    with pytest.raises(TypeError, match="functions of django_jobchains"):
        chain.save()
    with pytest.raises(TypeError, match=r"chains\.delete"):
        chain.delete()
    with pytest.raises(TypeError):
        Chain.objects.create(id=uuid4(), type_name="shop.pack")
    assert Job.objects.count() == 1


def test_chains_are_equal_by_their_id() -> None:
    chain = pending()
    assert chain == chains.get(chain.id) == Chain.objects.get(pk=chain.id)
    assert len({chain, chains.get(chain.id)}) == 1
    assert chain != pending()


def test_the_jobs_follow_the_steps() -> None:
    chain = completed_in_three_steps()
    assert [job.type_name for job in chain.jobs] == ["shop.pack", "shop.ship", "shop.mail"]
    assert chain.jobs.first() == Job.objects.get(pk=chain.id)
    assert chain.jobs.last() == chain.current_job
    assert [job.chain_index for job in chain.jobs.with_status("completed")] == [0, 1, 2]
    assert chain.jobs.filter(type_name="shop.ship").count() == 1


def test_the_chain_of_another_database_stays_there(second_alias: str) -> None:
    chain = pack.enqueue({"a": 1}, using=second_alias)
    assert (chain.using, chain.status, chain.input) == (second_alias, "pending", {"a": 1})
    assert [job.pk for job in chain.jobs.page()] == [chain.id]
    assert chain.current_job.pk == chain.id
    assert [found.id for found in Chain.objects.using(second_alias).incomplete().page()] == [chain.id]
    assert chains.get(chain.id, using=second_alias).refresh() == chain
    with pytest.raises(chains.ChainNotFound):
        chains.get(chain.id)
