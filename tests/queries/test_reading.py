"""A ``Chain`` is a snapshot. Missing fields are read together, once; only the ``chains`` functions change a chain."""

from uuid import uuid4

import pytest

from django_jobchains import chains
from django_jobchains.models import Chain, Job
from tests.support.attempts import committed, on_own_connection
from tests.support.chain_shapes import completed, completed_in_three_steps, continued, pack, pending, statements

pytestmark = pytest.mark.django_db

UNREAD = ("status", "output", "finished_at", "current_job_id", "last_error", "deduplication_key")


def finish(chain, output):
    chains.complete(chain.id, output)


@pytest.mark.parametrize("first", [*UNREAD, "current_job"])
def test_the_first_access_after_enqueueing_reads_all_missing_fields(first):
    chain = pack.enqueue({"a": 1})
    assert len(statements(lambda: getattr(chain, first))) == (2 if first == "current_job" else 1)
    assert statements(lambda: [getattr(chain, name) for name in UNREAD]) == []


def test_known_fields_after_enqueueing_take_no_statement():
    chain = pack.enqueue({"a": 1})
    assert statements(lambda: (chain.id, chain.type_name, chain.created_at, chain.deduplicated, str(chain))) == []


def test_status_and_output_are_from_the_same_moment():
    chain = pack.enqueue()
    assert chain.status == "pending"
    finish(chain, "done")
    assert (chain.status, chain.output, chain.finished_at) == ("pending", None, None)
    assert (chain.refresh().status, chain.output) == ("completed", "done")


def test_fields_are_read_at_the_first_access():
    chain = pack.enqueue({"a": 1})
    finish(chain, "done")
    assert (chain.output, chain.status, chain.input) == ("done", "completed", {"a": 1})


@committed
def test_changes_by_another_connection_are_seen_only_after_a_refresh():
    chain = pack.enqueue()
    assert chain.status == "pending"
    on_own_connection(finish, chain, [1])
    assert chain.status == "pending"
    assert len(statements(chain.refresh)) == 1
    assert (chain.status, chain.output, chain.current_job.status) == ("completed", [1], "completed")


def test_a_refreshed_chain_has_its_new_current_job():
    chain = pending()
    before = chain.current_job
    with chains.current_job(chain.id) as current:
        current.continue_with("shop.ship")
    assert chain.current_job == before
    assert chain.refresh().current_job != before
    assert chain.current_job.type_name == "shop.ship"


def test_a_refresh_keeps_deduplicated():
    key = chains.Deduplicate("k")
    pack.enqueue(deduplicate=key)
    again = pack.enqueue(deduplicate=key)
    assert again.refresh().deduplicated is True


def test_single_fields_can_be_refreshed():
    chain = chains.get(pending().id)
    finish(chain, 7)
    chain.refresh_from_db(fields=["status"])
    assert (chain.status, chain.output) == ("completed", None)


@pytest.mark.parametrize("only", [("status",), ("id", "type_name")])
def test_fields_deferred_by_only_are_read_together(only):
    id_ = completed_in_three_steps().id
    chain = Chain.objects.only(*only).get(pk=id_)
    assert len(statements(lambda: (chain.output, chain.input, chain.finished_at, chain.current_job_id))) == 1
    assert chain.output == ["sent"]


def test_a_deleted_chain_raises_when_it_is_read():
    read, unread = pending(), pending()
    assert read.status == "pending"
    chains.delete([read.id, unread.id])
    assert read.status == "pending"
    for read_again in (lambda: unread.status, read.refresh, unread.refresh, lambda: chains.get(read.id)):
        with pytest.raises(chains.ChainNotFound):
            read_again()
    assert not Chain.objects.filter(pk=read.id).exists()


def test_an_unknown_chain_is_not_found():
    id_ = uuid4()
    with pytest.raises(chains.ChainNotFound, match=str(id_)):
        chains.get(id_)
    with pytest.raises(Chain.DoesNotExist):
        Chain.objects.get(pk=id_)


def test_a_chain_takes_one_statement():
    id_ = completed_in_three_steps().id
    assert len(statements(lambda: chains.get(id_).output)) == 1


def test_select_related_reads_the_current_job():
    ids = {continued().id, completed().id}

    def read_all():
        found = Chain.objects.select_related("current_job").filter(pk__in=ids)
        assert {chain.id: chain.current_job.chain_index for chain in found}.keys() == ids
        assert sorted(chain.current_job.chain_index for chain in found) == [0, 1]

    assert len(statements(read_all)) == 1


def test_prefetch_related_reads_the_current_jobs_of_a_page():
    continued(), completed()
    found = statements(lambda: [c.current_job.status for c in Chain.objects.prefetch_related("current_job").page()])
    assert len(found) == 2


def test_a_chain_can_be_neither_saved_nor_deleted():
    chain = pending()
    with pytest.raises(TypeError, match="functions of django_jobchains"):
        chain.save()
    with pytest.raises(TypeError, match=r"chains\.delete"):
        chain.delete()
    with pytest.raises(TypeError):
        Chain.objects.create(id=uuid4(), type_name="shop.pack")
    assert Job.objects.count() == 1


def test_chains_are_equal_if_their_ids_are():
    chain = pending()
    assert chain == chains.get(chain.id) == Chain.objects.get(pk=chain.id)
    assert len({chain, chains.get(chain.id)}) == 1
    assert chain != pending()


def test_the_jobs_are_in_the_order_of_steps():
    chain = completed_in_three_steps()
    assert [job.type_name for job in chain.jobs] == ["shop.pack", "shop.ship", "shop.mail"]
    assert chain.jobs.first() == Job.objects.get(pk=chain.id)
    assert chain.jobs.last() == chain.current_job
    assert [job.chain_index for job in chain.jobs.with_status("completed")] == [0, 1, 2]
    assert chain.jobs.filter(type_name="shop.ship").count() == 1


def test_a_chain_stays_in_its_database(second_alias):
    chain = pack.enqueue({"a": 1}, using=second_alias)
    assert (chain.using, chain.status, chain.input) == (second_alias, "pending", {"a": 1})
    assert [job.pk for job in chain.jobs.page()] == [chain.id]
    assert chain.current_job.pk == chain.id
    assert [found.id for found in Chain.objects.using(second_alias).incomplete().page()] == [chain.id]
    assert chains.get(chain.id, using=second_alias).refresh() == chain
    with pytest.raises(chains.ChainNotFound):
        chains.get(chain.id)
