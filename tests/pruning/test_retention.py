"""Workers delete what is kept no longer: by status and type, beside each other, without walking what stays."""

import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connection, models
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains, testing
from django_jobchains.chains import Chain
from django_jobchains.deduplication import Deduplicate
from django_jobchains.exceptions import RegistryError
from django_jobchains.ids import milliseconds_of
from django_jobchains.models import Job
from django_jobchains.policies import Retention
from django_jobchains.processors import JobType, Processors, Registry, RunningJob
from django_jobchains.store import Beat, Store
from django_jobchains.telemetry.events import ChainsPruned
from django_jobchains.worker import pruner as module
from django_jobchains.worker.maintenance import Rounds, Sweeper
from django_jobchains.worker.pruner import Pruner, Rule, rules_of
from tests.interventions.chains_at import STATES, completed, each, failed, mail, pending, ship
from tests.store.jobs import MAIL, SHIP
from tests.worker.fixtures import Events, StartWorker

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)
BOTH = (SHIP, MAIL)


class Hours:
    """A monotonic clock that tests move."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def hours() -> Hours:
    return Hours()


def rule(
    status: str = "completed", kept: timedelta = DAY, types: tuple[str, ...] = BOTH, *, keyed: bool = True
) -> Rule:
    return Rule(status, kept, keyed, types)


def make(store: Store, *rules: Rule, clock: Callable[[], float] | None = None) -> Pruner:
    return Pruner(store, rules or [rule()], worker="worker-1", seconds=60, clock=clock or Hours())


def round_of(pruner: Pruner) -> int:
    """Until the round is over; its steps."""
    steps = 1
    while pruner.step():
        steps += 1
    assert not pruner.is_failing
    return steps


def finish_all(made: list[Chain]) -> list[Chain]:
    for chain in made:
        with chains.complete(chain.id) as current:
            current.finish("output")
    return made


def left() -> set[Any]:
    return set(Job.objects.values_list("chain_id", flat=True))


class TestWhatGoes:
    def test_each_status_after_its_own_time(self, store: Store, clock: testing.Clock) -> None:
        made = {name: STATES[name](store) for name in ("completed", "failed", "cancelled", "pending")}
        pruner = make(store, rule(kept=DAY), rule("cancelled", 3 * DAY), rule("failed", 9 * DAY))
        gone: set[UUID] = set()
        for days, name in ((1.5, "completed"), (2, "cancelled"), (7, "failed")):
            clock.advance(timedelta(days=days))
            round_of(pruner)
            gone.add(made[name].id)
            assert left() == each(made.values()) - gone

    def test_each_type_of_chain_after_its_own_time(self, store: Store, clock: testing.Clock) -> None:
        of_ship, of_mail = completed(store), finish_all([mail.enqueue()])[0]
        pruner = make(store, rule(kept=DAY, types=(SHIP,)), rule(kept=5 * DAY, types=(MAIL,)))
        clock.advance(3 * DAY)
        round_of(pruner)
        assert left() == {of_mail.id} != {of_ship.id}
        clock.advance(3 * DAY)
        round_of(pruner)
        assert not left()

    def test_the_time_counts_from_the_end_of_a_chain(self, store: Store, clock: testing.Clock) -> None:
        chain = pending(store)
        clock.advance(5 * DAY)
        finish_all([chain])
        round_of(make(store))
        assert left() == {chain.id}
        clock.advance(2 * DAY)
        round_of(make(store))
        assert not left()

    def test_a_type_that_the_project_does_not_know_stays(self, store: Store, clock: testing.Clock) -> None:
        chain = completed(store)
        clock.advance(3 * DAY)
        round_of(make(store, rule(types=(MAIL,))))
        assert left() == {chain.id}

    def test_a_chain_with_a_key_stays_where_keys_are_kept(self, store: Store, clock: testing.Clock) -> None:
        keyed, plain = finish_all([ship.enqueue(deduplicate=Deduplicate("k")), ship.enqueue()])
        clock.advance(3 * DAY)
        round_of(make(store, rule(keyed=False)))
        assert left() == {keyed.id} != {plain.id}
        round_of(make(store, rule(keyed=True)))
        assert not left()

    def test_ids_of_ones_own_are_found_by_a_full_round_wherever_they_lie(
        self, store: Store, clock: testing.Clock
    ) -> None:
        for _ in range(20):
            chain = completed(store)
            Job.objects.filter(pk=chain.id).update(id=(id_ := uuid4()), chain_id=id_)
        clock.advance(3 * DAY)
        round_of(make(store))
        assert len(left()) <= 1  # one of some hundred thousand lies in the time that is walked later


class TestHowItGoesOn:
    def test_a_step_is_bounded_and_what_stays_is_passed_over(
        self, store: Store, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "LOOK_LIMIT", 4)
        monkeypatch.setattr(module, "BATCH", 2)
        old = [completed(store) for _ in range(9)]
        kept = each([pending(store), failed(store)])
        clock.advance(3 * DAY)
        pruner = make(store)
        before = len(left())
        while pruner.step():
            assert before - (before := len(left())) <= 2
        assert left() == kept != each(old)

    def test_what_was_looked_at_is_not_walked_again_until_a_full_round(
        self, store: Store, clock: testing.Clock, hours: Hours, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        looked: list[tuple[UUID, UUID]] = []
        find = type(store).find_ended

        def watched(self: Store, column: str, value: str, place: Any, last: UUID, *rest: Any) -> Any:
            looked.append((place.chain_id, last))
            hours.seconds += 10
            return find(self, column, value, place, last, *rest)

        monkeypatch.setattr(type(store), "find_ended", watched)
        pruner = make(store, clock=hours)
        round_of(pruner)
        assert looked[0][0].int == 0
        assert len(looked) == 2
        for _ in range(3):
            clock.advance(DAY)
            round_of(pruner)
        assert 0 < looked[2][0].int < looked[0][1].int  # what hosts with fast clocks make is looked at again
        assert [first for first, _ in looked[3:]] == [last for _, last in looked[2:-1]]
        assert looked[-1][1].int < 2**127
        hours.seconds += 20 / module.SHARE_OF_FULL_ROUNDS
        round_of(pruner)
        assert looked[-2][0].int == 0

    def test_a_chain_that_ended_late_goes_with_the_next_full_round(
        self, store: Store, clock: testing.Clock, hours: Hours
    ) -> None:
        chain = pending(store)
        pruner = make(store, clock=hours)
        round_of(pruner)
        clock.advance(5 * DAY)
        hours.seconds += 0.0001
        pruner._full_at = hours.seconds + 50
        round_of(pruner)
        finish_all([chain])
        clock.advance(5 * DAY)
        round_of(pruner)
        assert left() == {chain.id}
        hours.seconds += 60
        round_of(pruner)
        assert not left()

    @pytest.mark.parametrize("host_is_ahead", [timedelta(hours=12), timedelta(hours=-12), timedelta(days=-365)])
    def test_the_clocks_of_hosts_do_not_decide_what_goes(
        self, store: Store, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch, host_is_ahead: timedelta
    ) -> None:
        """They are in the ids. What is deleted is decided by when the chain ended, by the database's clock."""
        seconds = host_is_ahead.total_seconds()
        with monkeypatch.context() as patch:
            patch.setattr("django_jobchains.ids._last", 0)
            patch.setattr("time.time_ns", lambda: int((time.time() + seconds) * 1e9))
            chain = completed(store)
        assert abs(milliseconds_of(chain.id) / 1000 - time.time() - seconds) < 60
        clock.advance(DAY - timedelta(minutes=1))
        round_of(make(store))
        assert chains.prune(DAY) == 0
        assert left() == {chain.id}
        clock.advance(timedelta(minutes=1))
        assert chains.prune(DAY, dry_run=True) == 1
        round_of(make(store))
        assert not left()

    def test_of_many_workers_each_makes_full_rounds_as_much_rarer(
        self, store: Store, hours: Hours, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(10):
            store.beat(Beat(f"w{number}", "host", 1, "1", 1, 0, 0, None, (), False, 1, 10))
        monkeypatch.setattr("random.random", lambda: 1.0)
        pruner = make(store, clock=hours)
        round_of(pruner)
        assert pruner._full_at == 1000 + 9 * 60
        hours.seconds += 600
        monkeypatch.setattr(pruner, "_looked_seconds", 0.0)
        find = type(store).find_ended

        def slow(*args: Any) -> Any:
            hours.seconds += 1
            return find(*args)

        monkeypatch.setattr(type(store), "find_ended", slow)
        round_of(pruner)
        assert pruner._full_at == hours.seconds + 2 / module.SHARE_OF_FULL_ROUNDS * 10

    def test_it_rests_after_each_step_in_proportion(
        self, store: Store, hours: Hours, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        time_ago = type(store).time_ago

        def slow(*args: Any) -> Any:
            hours.seconds += 4
            return time_ago(*args)

        monkeypatch.setattr(type(store), "time_ago", slow)
        pruner = make(store, clock=hours)
        assert pruner.step()
        assert pruner.rest_seconds == 4 * module.REST

    def test_a_round_with_nothing_to_do_is_two_statements(self, store: Store, hours: Hours) -> None:
        pruner = make(store, clock=hours)
        round_of(pruner)
        pruner._full_at = hours.seconds + 50
        with CaptureQueriesContext(connection) as asked:
            round_of(pruner)
        assert len(asked) == 2

    def test_between_its_steps_the_other_parts_look(
        self, store: Store, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "BATCH", 1)
        monkeypatch.setattr(module, "REST", 0.0)
        monkeypatch.setattr("random.uniform", lambda *shares: 0.0)
        for _ in range(3):
            completed(store)
        clock.advance(3 * DAY)
        seen: list[int] = []
        sweeper = Sweeper(store, worker="worker-1", seconds=0.0, is_on_duty=lambda: True)
        monkeypatch.setattr(sweeper, "step", lambda: seen.append(len(left())))
        rounds = Rounds(sweeper, make(store))
        for _ in range(6):
            rounds.step()
        assert seen == [3, 3, 3, 2, 1, 0]


class TestWhatGoesWrong:
    @pytest.fixture
    def _referred(self) -> Iterator[None]:
        """A table of the project that refers to jobs."""
        with connection.cursor() as cursor:
            job = Job._meta.db_table
            cursor.execute(f'CREATE TABLE ours (job_id {Job._meta.pk.db_type(connection)} REFERENCES "{job}" (id))')
        yield
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE ours")

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.usefixtures("_referred")
    def test_what_a_table_of_the_project_refers_to_stays_and_is_told_and_the_others_go(
        self, store: Store, caplog: pytest.LogCaptureFixture
    ) -> None:
        made = finish_all([ship.enqueue() for _ in range(7)])
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO ours SELECT id FROM {Job._meta.db_table} WHERE id = %s", [_as_stored(made[3])])
        with testing.clock() as clock:
            clock.advance(3 * DAY)
            round_of(make(store))
        assert left() == {made[3].id}
        assert caplog.messages[-1].startswith(f"Job {made[3].id} and its chain cannot be pruned")

    def test_anything_else_is_told_once_and_the_next_round_tries_again(
        self, store: Store, clock: testing.Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        completed(store)
        clock.advance(3 * DAY)

        def broken(*args: Any) -> Any:
            raise RuntimeError("Out of order.")

        pruner = make(store)
        with monkeypatch.context() as patch:
            patch.setattr(type(store), "find_ended", broken)
            assert pruner.step()
            assert not pruner.step()
            assert not pruner.step()
        assert pruner.is_failing
        assert [message for message in caplog.messages if "Out of order." in message] == [caplog.messages[-1]]
        round_of(pruner)
        assert not left()


class TestTheRules:
    def test_come_from_the_processor_its_slice_or_the_settings(self, settings: Any) -> None:
        settings.JOBCHAINS = {"RETENTION_COMPLETED_SECONDS": 60, "RETENTION_CANCELLED_SECONDS": None}
        part = Processors(retention=Retention(completed=DAY, cancelled=2 * DAY))
        part.register("a")(_handler)
        part.register("b", retention=Retention(None, None, keeps_keyed=False))(_handler)
        part.register("c", retention=Retention(failed=7, completed=None, cancelled=DAY * 2))(_handler)
        registry = Registry()
        registry.add(part)
        registry.add(JobType("outside"))
        assert set(rules_of(registry)) == {
            Rule("completed", DAY, False, ("a",)),
            Rule("completed", timedelta(seconds=60), False, ("outside",)),
            Rule("cancelled", 2 * DAY, False, ("a", "c")),
            Rule("failed", timedelta(seconds=7), False, ("c",)),
        }

    def test_a_type_that_no_chain_starts_with_has_none(self) -> None:
        with pytest.raises(RegistryError, match="Job type 'step': no chain starts with this type"):
            Processors().register("step", entry=False, retention=Retention())(_handler)

    @pytest.mark.parametrize("wrong", [0, -1, timedelta(0), float("nan"), float("inf"), "30d"])
    def test_times_are_above_0(self, settings: Any, wrong: Any) -> None:
        with pytest.raises(ValueError, match="completed is more than 0 seconds"):
            Retention(completed=wrong)
        settings.JOBCHAINS = {"RETENTION_FAILED_SECONDS": wrong}
        with pytest.raises(ImproperlyConfigured, match="RETENTION_FAILED_SECONDS"):
            rules_of(_registry())

    def test_longer_than_any_database_counts_is_for_ever(self, store: Store) -> None:
        part = Processors(retention=Retention(completed=timedelta.max))
        part.register("a")(_handler)
        registry = Registry()
        registry.add(part)
        round_of(make(store, *rules_of(registry)))

    def test_by_default_only_chains_without_a_key_go_and_failed_ones_never(self, settings: Any) -> None:
        del settings.JOBCHAINS
        month = timedelta(days=30)
        assert set(rules_of(_registry())) == {
            Rule("completed", month, False, ("a",)),
            Rule("cancelled", month, False, ("a",)),
        }


class TestAWorker:
    def test_prunes(self, store: Store, registry: Registry, make_worker: StartWorker, events: Events) -> None:
        registry.add(_registry().slices[0])
        registry.add(ship)
        pruner = make_worker().parts._pruner()[0]
        completed(store)
        with testing.clock() as clock:
            clock.advance(timedelta(days=40))
            assert isinstance(pruner, Pruner)
            round_of(pruner)
        assert not left()
        assert [event.count for event in events.of(ChainsPruned)] == [1]

    @pytest.mark.parametrize(
        "setting",
        [
            {"PRUNE_SECONDS": None},
            {"RETENTION_COMPLETED_SECONDS": None, "RETENTION_CANCELLED_SECONDS": None},
        ],
    )
    def test_does_not_where_that_is_turned_off(
        self, settings: Any, registry: Registry, make_worker: StartWorker, setting: dict[str, Any]
    ) -> None:
        registry.add(_registry().slices[0])
        settings.JOBCHAINS = setting
        parts = make_worker().parts
        assert parts._pruner() == []
        assert not any(isinstance(part, Pruner) for part in parts.rounds._due_at)


def _handler(job: RunningJob[None]) -> None: ...


def _registry() -> Registry:
    part = Processors()
    part.register("a")(_handler)
    registry = Registry()
    registry.add(part)
    return registry


def _as_stored(chain: Chain) -> Any:
    return models.UUIDField().get_db_prep_value(chain.id, connection)
