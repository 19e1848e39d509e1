"""The SQL of a statement is built once for each store, and again after a test has moved the clock."""

import pytest

from django_jobchains.store.database import Part, statement, statements
from tests.support.jobs import claim, failed_try, finished, running

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


def test_each_statement_is_built_once_in_one_line_until_the_clock_moves(store):
    probe, other = Probe(store.db), Probe(type(store)("default").db)
    before = [probe.only, probe.variant("a", True), probe.variant("a", False)]
    assert [probe.only, probe.variant("a", True), probe.variant("a", False)] == before
    assert before[0] == f"SELECT 1 WHERE {store.db.now} > {store.db.now}"
    assert probe.built == ["only", ("a", True), ("a", False)]
    for db in (other.db, store.db):
        db.ahead_seconds = 60
    assert "60" in probe.only == other.only != before[0]
    assert "60" in probe.variant("a", True) == other.variant("a", True) != before[1]


def test_second_job_builds_no_sql(store, monkeypatch):
    def run_jobs():
        done, failed = running(store, 2)
        store.leases.check([done.key])
        store.attempts.lock(done.id)
        store.attempts.finish([finished(done)], is_locked=True)
        store.attempts.fail([failed_try(failed)])
        store.attempts.hand_back([job.key for job in running(store)])
        store.attempts.finish([finished(job) for job in claim(store)])

    run_jobs()
    for name in ("row", "rows", "after", "latest", "any_of"):
        monkeypatch.setattr(type(store.db), name, None)
    run_jobs()
