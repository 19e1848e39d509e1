"""Keys within one ``enqueue_many``, with blockers and in transactions, and the statements they take."""

from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.chains import ChainNotFound, Deduplicate
from django_jobchains.models import Job, JobBlocker
from tests.deduplication.keyed_chains import KEY, mail, ship, start
from tests.support.attempts import committed

pytestmark = pytest.mark.django_db

MAX_STATEMENTS = 4  # the lock of the keys, the query for them, the insert
Sent = list[tuple[str, set[str]]]


def item(key, input=None, **options):
    return ship.item(input, deduplicate=Deduplicate(key) if key else None, **options)


def flags(created):
    return [chain.deduplicated for chain in created]


def test_first_of_equal_keys_in_one_batch_wins():
    keys = ["a", "b", "a", None, "a", "b", None]
    created = chains.enqueue_many([item(key, number) for number, key in enumerate(keys)])
    assert flags(created) == [False, False, True, False, True, True, False]
    assert [chain.input for chain in created] == [0, 1, 0, 3, 0, 1, 6]
    assert created[2].id == created[4].id == created[0].id
    assert created[2].created_at == created[0].created_at
    assert [job.input for job in Job.objects.order_by("pk")] == [0, 1, 3, 6]


def test_existing_chain_is_returned_for_all_equal_keys_of_a_batch():
    first = start("first", key="b")
    created = chains.enqueue_many([item(key, key) for key in "abab"])
    assert flags(created) == [False, True, True, True]
    assert [chain.input for chain in created] == ["a", "first", "a", "first"]
    assert created[1].id == created[3].id == first.id


def test_equal_keys_of_two_types_in_one_batch_are_two_chains():
    created = chains.enqueue_many([item("a"), mail.item(deduplicate=Deduplicate("a")), item("a")])
    assert flags(created) == [False, False, True]
    assert [chain.type_name for chain in created] == [ship.name, mail.name, ship.name]


def test_one_item_given_twice_is_one_chain():
    twice = item("a")
    created = chains.enqueue_many([twice, twice])
    assert created[0].id == created[1].id
    assert Job.objects.count() == 1


def test_given_id_is_ignored_if_the_key_exists():
    first = start()
    given = uuid4()
    again = ship.enqueue(id=given, deduplicate=Deduplicate(KEY))
    assert (again.id, again.deduplicated) == (first.id, True)
    assert not Job.objects.filter(pk=given).exists()


def test_blockers_of_a_deduplicated_item_are_ignored():
    first = start()
    again = ship.enqueue(blockers=[mail.enqueue()], deduplicate=Deduplicate(KEY))
    assert (again.id, again.deduplicated) == (first.id, True)
    assert not JobBlocker.objects.exists()
    assert first.refresh().status == "pending"


def test_only_the_blockers_of_the_first_of_equal_keys_are_used():
    blocker, other = mail.enqueue(), mail.enqueue()
    created = chains.enqueue_many([item("a", blockers=[blocker]), item("a", blockers=[other]), item("b")])
    assert flags(created) == [False, True, False]
    assert list(JobBlocker.objects.values_list("job_id", "blocker_id")) == [(created[0].id, blocker.id)]
    assert [chain.status for chain in created] == ["blocked", "blocked", "pending"]


def test_error_in_a_batch_creates_nothing_and_frees_its_keys():
    with pytest.raises(ChainNotFound), transaction.atomic():
        chains.enqueue_many([item("a"), item("b", blockers=[uuid4()])])
    assert not Job.objects.exists()
    assert not start(key="a").deduplicated


class TestTransactions:
    pytestmark = committed

    def test_rolled_back_transaction_frees_the_key(self):
        with transaction.atomic():
            first = start()
            assert start().id == first.id
            transaction.set_rollback(True)
        assert not start().deduplicated

    def test_rolled_back_savepoint_frees_the_key_within_the_same_transaction(self):
        with transaction.atomic():
            with transaction.atomic():
                start("first")
                transaction.set_rollback(True)
            second = start("second")
            assert not second.deduplicated
        assert Job.objects.get().input == "second"

    def test_error_in_a_batch_outside_a_transaction_creates_nothing(self):
        with pytest.raises(ChainNotFound):
            chains.enqueue_many([item("a"), item("b", blockers=[uuid4()])])
        assert not Job.objects.exists()

    def test_deduplicated_chain_sends_no_wake_up(self, sent):
        start()
        sent.clear()
        assert start().deduplicated
        assert sent == []
        chains.enqueue_many([mail.item(), item(KEY)])
        assert sent == [("default", {mail.name})]

    def test_each_database_has_its_own_keys(self, second_alias):
        first = start()
        other = ship.enqueue(deduplicate=Deduplicate(KEY), using=second_alias)
        assert not other.deduplicated
        assert ship.enqueue(deduplicate=Deduplicate(KEY), using=second_alias).id == other.id != first.id


class TestStatements:
    def count(self, items):
        with CaptureQueriesContext(connection) as queries:
            chains.enqueue_many(items)
        return len(queries)

    def test_keys_take_a_constant_number_of_statements(self):
        numbers = {self.count([item(f"{size} {n}") for n in range(size)]) for size in (1, 10, 1_000)}
        assert max(numbers) <= MAX_STATEMENTS

    def test_existing_keys_take_no_more_statements(self):
        for size in (1, 10, 1_000):
            chains.enqueue_many([item(f"{size} {n}") for n in range(size)])
        numbers = {self.count([item(f"{size} {n}") for n in range(size)]) for size in (1, 10, 1_000)}
        assert max(numbers) <= MAX_STATEMENTS

    def test_equal_keys_take_no_more_statements(self):
        assert self.count([item("a", n) for n in range(1_000)]) <= MAX_STATEMENTS
        assert Job.objects.count() == 1

    def test_keys_with_blockers_take_a_constant_number_of_statements(self):
        blocker = mail.enqueue()
        sizes = (1, 10, 1_000)
        numbers = {self.count([item(f"{size} {n}", blockers=[blocker]) for n in range(size)]) for size in sizes}
        assert max(numbers) <= 3 * MAX_STATEMENTS

    @pytest.mark.slow
    def test_batch_may_have_more_keys_than_the_server_has_locks(self):
        items = [item(str(number), number) for number in range(25_000)]
        assert self.count(items) <= 8
        assert self.count(items) <= 8
        assert Job.objects.count() == 25_000

    @pytest.mark.slow
    def test_transaction_may_use_more_keys_than_the_server_has_locks(self):
        with transaction.atomic():
            for start_at in range(0, 25_000, 200):
                chains.enqueue_many([item(str(number)) for number in range(start_at, start_at + 200)])
        assert Job.objects.count() == 25_000
