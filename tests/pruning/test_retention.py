"""Workers delete chains after their retention, by status and type, without repeated walks over kept chains."""

import time
from datetime import timedelta

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, models
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains, testing
from django_jobchains.chains.pruning import Rule, retention_rules
from django_jobchains.db.ids import milliseconds_of
from django_jobchains.declare.policies import Retention
from django_jobchains.exceptions import RegistryError
from django_jobchains.models import Job
from django_jobchains.processors import JobType, Processors, Registry, RunningJob
from django_jobchains.store.workers import Beat
from django_jobchains.telemetry.events import ChainsPruned
from django_jobchains.worker import caretakers as pruner_module
from django_jobchains.worker.caretakers import Pruner
from tests.support import clocks
from tests.support.chains import STATES, completed, each, failed, mail, pending, ship
from tests.support.jobs import MAIL, SHIP

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
BOTH = (SHIP, MAIL)


@pytest.fixture
def monotonic():
    return clocks.Clock()


def rule(status="completed", kept=DAY, types=BOTH, *, keyed=True):
    return Rule(status, kept, keyed, types)


def make_pruner(store, *rules, clock=None):
    return Pruner(store, rules or [rule()], worker="worker-1", seconds=60, clock=clock or clocks.Clock())


def run_round(pruner):
    while pruner.step():
        pass
    assert not pruner.failures.is_failing


def finish_all(made):
    for chain in made:
        chains.complete(chain.id, "output")
    return made


def chain_ids():
    return set(Job.objects.values_list("chain_id", flat=True))


class TestDeletedChains:
    def test_each_status_and_type_has_its_own_retention(self, store, clock):
        made = {name: STATES[name](store) for name in ("completed", "failed", "cancelled", "pending")}
        (made["mail"],) = finish_all([mail.enqueue()])
        rules = [rule(kept=DAY, types=(SHIP,)), rule("cancelled", 3 * DAY), rule(kept=5 * DAY), rule("failed", 9 * DAY)]
        pruner = make_pruner(store, *rules)
        for days, name in ((1.5, "completed"), (2, "cancelled"), (2, "mail"), (7, "failed")):
            clock.advance(timedelta(days=days))
            run_round(pruner)
            del made[name]
            assert chain_ids() == each(made.values())


class TestRounds:
    def test_step_is_limited_and_skips_kept_chains(self, store, clock, monkeypatch):
        monkeypatch.setattr(pruner_module, "MAX_ENTRIES_PER_STEP", 4)
        monkeypatch.setattr(pruner_module, "BATCH_SIZE", 2)
        old = [completed(store) for _ in range(9)]
        kept = each([pending(store), failed(store)])
        clock.advance(3 * DAY)
        pruner = make_pruner(store)
        before = len(chain_ids())
        while pruner.step():
            assert before - (before := len(chain_ids())) <= 2
        assert chain_ids() == kept != each(old)

    def test_round_continues_where_the_last_one_ended(self, store, clock, monotonic, monkeypatch):
        walks = []
        find = type(store.retention).find_ended

        def recorded(self, column, value, place, last, *rest):
            walks.append((place.chain_id, last))
            monotonic.now += 10
            return find(self, column, value, place, last, *rest)

        monkeypatch.setattr(type(store.retention), "find_ended", recorded)
        pruner = make_pruner(store, clock=monotonic)
        run_round(pruner)
        assert walks[0][0].int == 0
        assert len(walks) == 2
        for _ in range(3):
            clock.advance(DAY)
            run_round(pruner)
        assert 0 < walks[2][0].int < walks[0][1].int  # ids of hosts with fast clocks are searched again
        assert [first for first, _ in walks[3:]] == [last for _, last in walks[2:-1]]
        assert walks[-1][1].int < 2**127
        monotonic.now += 20 / pruner_module.FULL_ROUNDS_SHARE
        run_round(pruner)
        assert walks[-2][0].int == 0

    def test_chain_that_ends_late_is_deleted_by_a_full_round(self, store, clock, monotonic):
        chain = pending(store)
        pruner = make_pruner(store, clock=monotonic)
        run_round(pruner)
        clock.advance(5 * DAY)
        monotonic.now += 0.0001
        pruner._full_at = monotonic.now + 50
        run_round(pruner)
        finish_all([chain])
        clock.advance(5 * DAY)
        run_round(pruner)
        assert chain_ids() == {chain.id}
        monotonic.now += 60
        run_round(pruner)
        assert not chain_ids()

    @pytest.mark.parametrize("host_is_ahead", [timedelta(hours=12), timedelta(days=-365)])
    def test_clocks_of_hosts_do_not_affect_retention(self, store, clock, monkeypatch, host_is_ahead):
        """Ids contain the host's time, but retention compares the end of the chain with the database's clock."""
        seconds = host_is_ahead.total_seconds()
        with monkeypatch.context() as patch:
            patch.setattr("django_jobchains.db.ids._last", 0)
            patch.setattr("time.time_ns", lambda: int((time.time() + seconds) * 1e9))
            chain = completed(store)
        assert abs(milliseconds_of(chain.id) / 1000 - time.time() - seconds) < 60
        clock.advance(DAY - timedelta(minutes=1))
        run_round(make_pruner(store))
        assert chains.prune(DAY) == 0
        assert chain_ids() == {chain.id}
        clock.advance(timedelta(minutes=1))
        assert chains.prune(DAY, dry_run=True) == 1
        run_round(make_pruner(store))
        assert not chain_ids()

    def test_full_rounds_are_rarer_with_more_workers(self, store, monotonic, monkeypatch):
        for number in range(10):
            store.workers.beat(Beat(f"w{number}", "host", 1, "1", 1, 0, 0, None, (), False, 1, 10))
        monkeypatch.setattr("random.random", lambda: 1.0)
        pruner = make_pruner(store, clock=monotonic)
        run_round(pruner)
        assert pruner._full_at == 1000 + 9 * 60
        monotonic.now += 600
        monkeypatch.setattr(pruner, "_search_seconds", 0.0)
        find = type(store.retention).find_ended

        def slow(*args):
            monotonic.now += 1
            return find(*args)

        monkeypatch.setattr(type(store.retention), "find_ended", slow)
        run_round(pruner)
        assert pruner._full_at == monotonic.now + 2 / pruner_module.FULL_ROUNDS_SHARE * 10
        assert pruner.rest_seconds == pruner_module.REST_SHARE

    def test_round_without_due_chains_needs_two_statements(self, store, monotonic):
        pruner = make_pruner(store, clock=monotonic)
        run_round(pruner)
        pruner._full_at = monotonic.now + 50
        with CaptureQueriesContext(connection) as queries:
            run_round(pruner)
        assert len(queries) == 2


class TestErrors:
    @pytest.fixture
    def _referencing_table(self):
        """A table of the project with a foreign key to jobs."""
        with connection.cursor() as cursor:
            job = Job._meta.db_table
            cursor.execute(f'CREATE TABLE ours (job_id {Job._meta.pk.db_type(connection)} REFERENCES "{job}" (id))')
        yield
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE ours")

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.usefixtures("_referencing_table")
    def test_job_referenced_by_another_table_is_logged_and_kept(self, store, caplog):
        made = finish_all([ship.enqueue() for _ in range(7)])
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO ours SELECT id FROM {Job._meta.db_table} WHERE id = %s", [_as_stored(made[3])])
        with testing.clock() as clock:
            clock.advance(3 * DAY)
            run_round(make_pruner(store))
        assert chain_ids() == {made[3].id}
        assert caplog.messages[-1].startswith(f"Job {made[3].id} and its chain cannot be pruned")

    def test_error_is_logged_once_and_the_next_round_tries_again(self, store, clock, monkeypatch, caplog):
        completed(store)
        clock.advance(3 * DAY)

        def broken(*args):
            raise RuntimeError("Out of order.")

        pruner = make_pruner(store)
        with monkeypatch.context() as patch:
            patch.setattr(type(store.retention), "find_ended", broken)
            assert pruner.step()
            assert not pruner.step()
            assert not pruner.step()
        assert pruner.failures.is_failing
        assert [message for message in caplog.messages if "Out of order." in message] == [caplog.messages[-1]]
        run_round(pruner)
        assert not chain_ids()


class TestRetentionRules:
    def test_rules_come_from_processor_slice_or_settings(self, settings):
        settings.JOBCHAINS = {"RETENTION_COMPLETED_SECONDS": 60, "RETENTION_CANCELLED_SECONDS": None}
        part = Processors(retention=Retention(completed=DAY, cancelled=2 * DAY))
        part.register("a")(_handler)
        part.register("b", retention=Retention(None, None, keeps_keyed=False))(_handler)
        part.register("c", retention=Retention(failed=7, completed=None, cancelled=DAY * 2))(_handler)
        registry = Registry()
        registry.add(part)
        registry.add(JobType("outside"))
        assert set(retention_rules(registry)) == {
            Rule("completed", DAY, False, ("a",)),
            Rule("completed", timedelta(seconds=60), False, ("outside",)),
            Rule("cancelled", 2 * DAY, False, ("a", "c")),
            Rule("failed", timedelta(seconds=7), False, ("c",)),
        }

    def test_retention_of_a_type_without_chains_is_refused(self):
        with pytest.raises(RegistryError, match="Job type 'step': no chain starts with this type"):
            Processors().register("step", entry=False, retention=Retention())(_handler)

    def test_retention_must_be_positive(self, settings):
        invalid = [0, float("inf"), "30"]
        for value in invalid:
            with pytest.raises((TypeError, ValueError), match=r"completed=.* is not a duration"):
                Retention(completed=value)
            settings.JOBCHAINS = {"RETENTION_FAILED_SECONDS": value}
            with pytest.raises(ImproperlyConfigured, match="RETENTION_FAILED_SECONDS"):
                retention_rules(_registry())

    def test_default_rules(self, settings):
        del settings.JOBCHAINS
        month = timedelta(days=30)
        assert set(retention_rules(_registry())) == {
            Rule("completed", month, False, ("a",)),
            Rule("cancelled", month, False, ("a",)),
        }


class TestWorkers:
    def test_worker_prunes(self, store, registry, make_worker, events):
        registry.add(_registry().slices[0])
        registry.add(ship)
        [pruner] = [task for task in make_worker().components.maintenance._due_at if isinstance(task, Pruner)]
        completed(store)
        with testing.clock() as clock:
            clock.advance(timedelta(days=40))
            run_round(pruner)
        assert not chain_ids()
        assert [event.count for event in events.of(ChainsPruned)] == [1]

    @pytest.mark.parametrize(
        "setting",
        [
            {"PRUNE_SECONDS": None},
            {"RETENTION_COMPLETED_SECONDS": None, "RETENTION_CANCELLED_SECONDS": None},
        ],
    )
    def test_worker_does_not_prune_if_disabled(self, settings, registry, make_worker, setting):
        registry.add(_registry().slices[0])
        settings.JOBCHAINS = setting
        maintenance = make_worker().components.maintenance
        assert not any(isinstance(task, Pruner) for task in maintenance._due_at)


def _handler(job: RunningJob[None]) -> None: ...


def _registry():
    part = Processors()
    part.register("a")(_handler)
    registry = Registry()
    registry.add(part)
    return registry


def _as_stored(chain):
    return models.UUIDField().get_db_prep_value(chain.id, connection)
