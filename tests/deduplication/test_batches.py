"""Keys within one ``enqueue_many``, with blockers, and in transactions."""

from uuid import uuid4

import pytest
from django.db import transaction

from django_jobchains import chains
from django_jobchains.chains import ChainNotFound, Deduplicate, DuplicateJobId
from django_jobchains.models import Job, JobBlocker
from tests.deduplication.keyed_chains import KEY, mail, ship, start
from tests.support.attempts import committed

pytestmark = pytest.mark.django_db


def item(key, input=None, **options):
    return ship.item(input, deduplicate=Deduplicate(key) if key else None, **options)


def flags(created):
    return [chain.deduplicated for chain in created]


def test_first_of_equal_keys_in_one_batch_wins_unless_its_chain_exists():
    first = start("first", key="b")
    keys = ["a", "b", "a", None, "a", "b", None]
    created = chains.enqueue_many([item(key, number) for number, key in enumerate(keys)])
    assert flags(created) == [False, True, True, False, True, True, False]
    assert [chain.input for chain in created] == [0, "first", 0, 3, 0, "first", 6]
    assert created[2].id == created[4].id == created[0].id
    assert created[1].id == created[5].id == first.id
    assert created[2].created_at == created[0].created_at
    assert [job.input for job in Job.objects.order_by("pk")] == ["first", 0, 3, 6]


def test_equal_keys_of_two_types_in_one_batch_are_two_chains():
    created = chains.enqueue_many([item("a"), mail.item(deduplicate=Deduplicate("a")), *[item("a")] * 2])
    assert flags(created) == [False, False, True, True]
    assert [chain.type_name for chain in created] == [ship.name, mail.name, ship.name, ship.name]


def test_given_id_and_blockers_are_ignored_if_the_key_exists():
    first, given = start(), uuid4()
    again = ship.enqueue(id=given, blockers=[mail.enqueue()], deduplicate=Deduplicate(KEY))
    assert (again.id, again.deduplicated) == (first.id, True)
    assert not Job.objects.filter(pk=given).exists()
    assert not JobBlocker.objects.exists()


def test_given_id_of_a_chain_that_exists_can_be_used_with_another_key():
    first, given = start(key="a"), uuid4()
    created = chains.enqueue_many([item("a", id=given), item("b", id=given), item("a")])
    assert [chain.id for chain in created] == [first.id, given, first.id]
    assert flags(created) == [True, False, True]
    with pytest.raises(DuplicateJobId):
        chains.enqueue_many([item("c", id=(again := uuid4())), item("d", id=again)])


def test_only_the_blockers_of_the_first_of_equal_keys_are_used():
    blocker, other = mail.enqueue(), mail.enqueue()
    created = chains.enqueue_many([item("a", blockers=[blocker]), item("a", blockers=[other]), item("b")])
    assert flags(created) == [False, True, False]
    assert list(JobBlocker.objects.values_list("job_id", "blocker_id")) == [(created[0].id, blocker.id)]
    assert [chain.status for chain in created] == ["blocked", "blocked", "pending"]


@committed
def test_error_or_rollback_frees_the_keys():
    with pytest.raises(ChainNotFound):
        chains.enqueue_many([item("a"), item("b", blockers=[uuid4()])])
    with transaction.atomic():
        with transaction.atomic():
            start("first", key="a")
            transaction.set_rollback(True)
        assert not start("second", key="a").deduplicated
    assert Job.objects.get().input == "second"


@committed
def test_deduplicated_chain_sends_no_wake_up(sent):
    start()
    sent.clear()
    assert start().deduplicated
    assert sent == []
    chains.enqueue_many([mail.item(), item(KEY)])
    assert sent == [("default", {mail.name})]


@committed
def test_each_database_has_its_own_keys(second_alias):
    first = start()
    one, other = (ship.enqueue(deduplicate=Deduplicate(KEY), using=second_alias) for _ in range(2))
    assert flags([one, other]) == [False, True]
    assert first.id != one.id == other.id
