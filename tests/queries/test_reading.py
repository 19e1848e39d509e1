"""A ``Chain`` is a snapshot. Missing fields are read together, once; only the ``chains`` functions change a chain."""

from uuid import uuid4

import pytest
from django.core.management import call_command
from django.core.serializers.base import DeserializationError
from django.db import connection

from django_jobchains import chains
from django_jobchains.models import Chain, Job, JobProgress
from tests.support.attempts import committed, on_own_connection
from tests.support.chain_shapes import (
    completed,
    completed_in_three_steps,
    completed_without_output,
    continued,
    pack,
    pending,
    statements,
)

pytestmark = pytest.mark.django_db

UNREAD = ("status", "output", "finished_at", "current_job_id", "last_error", "deduplication_key")


@pytest.mark.parametrize("first", [*UNREAD, "current_job"])
def test_the_first_access_after_enqueueing_reads_all_missing_fields(first):
    chain = pack.enqueue({"a": 1})
    assert statements(lambda: (chain.id, chain.type_name, chain.created_at, chain.deduplicated, str(chain))) == []
    assert len(statements(lambda: getattr(chain, first))) == (2 if first == "current_job" else 1)
    assert statements(lambda: [getattr(chain, name) for name in UNREAD]) == []


@pytest.mark.parametrize("only", [("status",), ("id", "type_name")])
def test_fields_deferred_by_only_are_read_together(only):
    id_ = completed_in_three_steps().id
    chain = Chain.objects.only(*only).get(pk=id_)
    assert len(statements(lambda: (chain.output, chain.input, chain.finished_at, chain.current_job_id))) == 1
    assert chain.output == ["sent"]
    assert len(statements(lambda: chains.get(id_).output)) == 1


@committed
def test_changes_are_seen_only_after_a_refresh():
    chain, unread = pack.enqueue({"a": 1}), pack.enqueue({"a": 2})
    before = chain.current_job
    assert chain.status == "pending"
    for each in (chain, unread):
        on_own_connection(chains.complete, each.id, [1])
    assert (chain.status, chain.output, chain.finished_at, chain.current_job) == ("pending", None, None, before)
    assert (unread.status, unread.output, unread.input) == ("completed", [1], {"a": 2})
    assert len(statements(chain.refresh)) == 1
    assert (chain.status, chain.output, chain.current_job.status) == ("completed", [1], "completed")


def test_single_fields_can_be_refreshed():
    chain = chains.get(pending().id)
    with chains.current_job(chain.id) as current:
        current.continue_with("shop.ship")
        current.finish(7)
    chain.refresh_from_db(fields=["status"])
    assert (chain.status, chain.output) == ("completed", None)
    assert chain.refresh().current_job.type_name == "shop.ship"


def test_a_refresh_keeps_deduplicated():
    key = chains.Deduplicate("k")
    again = [pack.enqueue(deduplicate=key) for _ in "xy"][1]
    assert again.refresh().deduplicated is True


def test_a_deleted_or_unknown_chain_raises_when_it_is_read():
    read, unread = pending(), pending()
    assert read.status == "pending"
    chains.delete([read.id, unread.id])
    assert read.status == "pending"
    for read_again in (lambda: unread.status, read.refresh, unread.refresh, lambda: chains.get(read.id)):
        with pytest.raises(chains.ChainNotFound, match=f"{read.id}|{unread.id}"):
            read_again()
    with pytest.raises(Chain.DoesNotExist):
        Chain.objects.get(pk=read.id)


def test_the_current_jobs_of_many_chains_can_be_read_together():
    continued(), completed()

    def indexes(queryset):
        return sorted(chain.current_job.chain_index for chain in queryset.page())

    for name, count in (("select_related", 1), ("prefetch_related", 2)):
        queryset = getattr(Chain.objects, name)("current_job")
        assert len(statements(lambda queryset=queryset: indexes(queryset))) == count
        assert indexes(queryset) == [0, 1]


@pytest.mark.parametrize("name", ["chain", "job"])
def test_chains_and_jobs_can_be_neither_saved_nor_deleted(name):
    """Saving a completed job without an output hid its chain, and saving a job undid a claim since it was read."""
    chain = completed_without_output()
    part = {"chain": chain, "job": chain.current_job}[name]
    with pytest.raises(TypeError, match=f"A {name} cannot be saved .* functions of django_jobchains"):
        part.save()
    with pytest.raises(TypeError, match=rf"A {name} cannot be deleted .*\.chains\.delete\({name}\)"):
        part.delete()
    with pytest.raises(TypeError):
        type(part).objects.create(id=uuid4(), type_name="shop.pack")
    assert chain.refresh().status == "completed"
    assert Job.objects.count() == 1


@pytest.mark.parametrize("dumped", ["django_jobchains", "django_jobchains.job"])
def test_jobs_cannot_be_loaded_from_a_fixture(dumped, tmp_path):
    """A null output was stored as NULL, which hid the chain."""
    chain = completed_without_output()
    path = str(tmp_path / "fixture.json")
    call_command("dumpdata", dumped, output=path)
    with pytest.raises(TypeError, match=r"-e django_jobchains.* pg_dump"):
        call_command("loaddata", path)
    assert chain.refresh().status == "completed"


def test_chains_cannot_be_loaded_from_a_fixture(tmp_path):
    pending()
    path = str(tmp_path / "fixture.json")
    call_command("dumpdata", "django_jobchains.chain", output=path)
    with pytest.raises(DeserializationError):
        call_command("loaddata", path)
    assert Chain.objects.count() == 1


def test_a_setting_of_django_leaves_jobs_out_of_a_serialized_rollback(settings):
    """``TransactionTestCase`` serializes what migrations have created, and restores it before each test."""
    chain, creation = pending(), connection.creation
    with pytest.raises(TypeError, match=r"set TEST_NON_SERIALIZED_APPS = \['django_jobchains'\]"):
        creation.deserialize_db_from_string(creation.serialize_db_to_string())
    settings.TEST_NON_SERIALIZED_APPS = ["django_jobchains"]
    contents = creation.serialize_db_to_string()
    chains.delete(chain)
    creation.deserialize_db_from_string(contents)
    assert not Job.objects.exists()


def test_chains_are_equal_if_their_ids_are():
    chain = pending()
    assert chain == chains.get(chain.id) == Chain.objects.get(pk=chain.id)
    assert len({chain, chains.get(chain.id)}) == 1
    assert chain != pending()


def test_the_jobs_are_in_the_order_of_steps():
    chain = completed_in_three_steps()
    assert [job.type_name for job in chain.jobs] == ["shop.pack", "shop.ship", "shop.mail"]
    assert (chain.jobs.first().pk, chain.jobs.last()) == (chain.id, chain.current_job)
    assert [chains.get(job.id) for job in chain.jobs[1:]] == [chain, chain]


def test_a_chain_stays_in_its_database(second_alias):
    chain = pack.enqueue({"a": 1}, using=second_alias)
    assert (chain.using, chain.status, chain.input) == (second_alias, "pending", {"a": 1})
    assert [job.pk for job in chain.jobs.page()] == [chain.current_job.pk] == [chain.id]
    assert [found.id for found in Chain.objects.using(second_alias).incomplete().page()] == [chain.id]
    assert chains.get(chain.id, using=second_alias).refresh() == chain
    with pytest.raises(chains.ChainNotFound):
        chains.get(chain.id)


def test_the_progress_is_none_until_it_is_reported():
    chain = completed_in_three_steps()
    first, *_, last = chain.jobs
    assert (first.progress, last.progress, chain.progress) == (None, None, None)
    for job, fraction in ((first, 0.2), (last, 0.4)):
        JobProgress.objects.create(job=job, lease_number=1, attempt=1, fraction=fraction, logged_at=job.created_at)
    first, *_, last = chain.refresh().jobs
    assert (first.progress.fraction, last.progress.fraction, chain.progress.fraction) == (0.2, 0.4, 0.4)
    found = list(Job.objects.select_related("reported_progress"))
    assert statements(lambda: [job.progress for job in found]) == []


def test_one_statement_counts_the_blockers_that_have_ended():
    parts = [pending() for _ in range(3)]
    chain = chains.get(pack.enqueue({}, blockers=parts))
    assert chain.blockers_progress == (0, 3)
    chains.complete(parts[1])
    assert len(statements(lambda: chain.blockers_progress)) == 1
    assert chain.blockers_progress == (1, 3)
    assert (chain.blockers_progress.ended, chain.blockers_progress.total) == (1, 3)
    assert chains.get(parts[0]).blockers_progress == (0, 0)
