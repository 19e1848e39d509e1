"""The SQL of a statement is built once for each store, and again after a test has moved the clock."""

import pytest

from django_jobchains.store.database import Part, statement, statements
from tests.support.jobs import claim, create, failed_try, finished, running

pytestmark = pytest.mark.django_db


class Probe(Part):
    """Records what it builds."""

    def __init__(self, db):
        super().__init__(db)
        self.built = []

    @statement
    def only(self):
        self.built.append("only")
        return f"""
            SELECT 1
            WHERE {self.db.now}  > {self.db.now}
        """

    @statements
    def variant(self, column, is_locked):
        self.built.append((column, is_locked))
        return f"SELECT {column} {is_locked} {self.db.clock}"


@pytest.fixture
def probe(store):
    return Probe(store.db)


def test_statement_is_built_once_in_one_line(probe):
    assert probe.only == probe.only == f"SELECT 1 WHERE {probe.db.now} > {probe.db.now}"
    assert probe.built == ["only"]


def test_each_variant_is_built_once(probe):
    texts = {probe.variant(column, is_locked) for column in ("a", "b") for is_locked in (True, False)}
    assert len(texts) == 4
    assert probe.variant("a", True) in texts
    assert len(probe.built) == 4


def test_store_of_the_same_class_builds_its_own(probe, store):
    other = Probe(type(store)("default").db)
    other.db.ahead_seconds = 60
    assert other.only != probe.only
    assert other.variant("a", True) != probe.variant("a", True)


def test_moved_clock_changes_every_statement(probe):
    before = [probe.only, probe.variant("a", True)]
    probe.db.ahead_seconds += 60
    moved = [probe.only, probe.variant("a", True)]
    assert all("60" in sql for sql in moved)
    probe.db.ahead_seconds = 0
    assert [probe.only, probe.variant("a", True)] == before


def test_second_job_builds_no_sql(store, monkeypatch):
    run_jobs(store)

    def fail(*args):
        raise AssertionError("A statement is built again.")

    for name in ("row", "rows", "after", "latest", "any_of"):
        monkeypatch.setattr(type(store.db), name, fail)
    run_jobs(store)


def run_jobs(store):
    done, failed = running(store, 2)
    store.leases.check([done.key])
    store.attempts.lock(done.id)
    store.attempts.finish([finished(done)], is_locked=True)
    store.attempts.fail([failed_try(failed)])
    create(store)
    store.attempts.hand_back([job.key for job in claim(store)])
    store.attempts.finish([finished(job) for job in claim(store)])
