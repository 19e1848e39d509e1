"""The parts of a worker, made for what it works for, and how they hang together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from django_jobchains.attempts import Outcome
from django_jobchains.batch_attempts import BatchAttempt
from django_jobchains.conf import get_settings
from django_jobchains.leases import HeldLeases
from django_jobchains.notes import Notebook
from django_jobchains.notifications import Hint, Listener, get_notifier
from django_jobchains.policies import AttemptPolicy, Backoff, resolve
from django_jobchains.processors import Registry
from django_jobchains.store import ReapedJob, Store
from django_jobchains.worker.completer import Completer
from django_jobchains.worker.event_loop import AsyncSlots
from django_jobchains.worker.health import Checkup
from django_jobchains.worker.lanes import AnyAttempt, Lane, Place
from django_jobchains.worker.loop import ClaimLoop
from django_jobchains.worker.maintenance import LeaseKeeper, Part, Reaper, Rounds, Sweeper
from django_jobchains.worker.note_writer import NoteWriter
from django_jobchains.worker.presence import Heartbeat
from django_jobchains.worker.pruner import Pruner, rules_of
from django_jobchains.worker.queues import ServedQueues
from django_jobchains.worker.slots import Slots
from django_jobchains.worker.tally import AttemptTally
from django_jobchains.worker.threads import OwnedThread
from django_jobchains.worker.turns import Turns, group_of
from django_jobchains.worker.wakeups import WakeUp
from django_jobchains.worker.watch import Watch


@dataclass(frozen=True)
class Scope:
    """What a worker works for, and how much at once. ``queues`` None: every queue."""

    worker: str
    store: Store
    registry: Registry
    policies: Mapping[str, AttemptPolicy]
    queues: tuple[str, ...] | None
    slots: int
    async_slots: int
    poll_seconds: float
    max_jobs: int | None

    @property
    def shortest_lease(self) -> float:
        return min(policy.lease.seconds for policy in self.policies.values())


class Parts:
    """``is_eager``: whether the end of each attempt is a reason to look for work. ``give_up``: a part cannot go on."""

    def __init__(self, scope: Scope, *, is_eager: Callable[[], bool], give_up: Callable[[], None]) -> None:
        self._scope = scope
        self._is_eager = is_eager
        self._give_up = give_up
        self._settings = get_settings()
        self.leases = HeldLeases(scope.store)
        self.notifier = get_notifier(scope.store.using)
        self.turns = self._turns()
        self.wake = WakeUp(scope.policies, self.turns)
        self.queues = ServedQueues(scope.store, self.leases, scope.queues)
        self.tally = AttemptTally(scope.store, worker=scope.worker, seconds=self._settings.HEARTBEAT_SECONDS)
        self.completer = Completer(
            scope.store,
            self.leases,
            worker=scope.worker,
            is_busy=lambda: self.slots.has_waiting,
            on_written=self._on_written,
            on_ended=self.tally.ended,
        )
        self.notebook = Notebook()
        self.notes = NoteWriter(scope.store, self.notebook, worker=scope.worker)
        self.slots = self._threaded()
        self.async_slots = self._event_loop()
        self.places: list[Place] = [self.slots, self.async_slots] if self.async_slots else [self.slots]
        self.loop = self._claim_loop()
        self.heartbeat = self._heartbeat()
        self.rounds = Rounds(self.heartbeat, self.tally, self._reaper(), self._sweeper(), *self._pruner())
        self.keeper = LeaseKeeper(self.leases, scope.worker, min(scope.shortest_lease / 6, 5))
        self.watch = self._watch()
        steps = {
            "claims": self.loop.step,
            "completer": self.completer.step,
            "reaper": self.rounds.step,
            "keeper": self.keeper.step,
            "watch": self.watch.step,
            "notes": self.notes.step,
        }
        self.threads = {
            name: OwnedThread(name, step, worker=scope.worker, give_up=give_up, using=scope.store.using)
            for name, step in steps.items()
        }
        self.listener: Listener | None = None
        self.checkup = self._checkup()

    def start(self) -> None:
        for place in self.places:
            place.start()
        for thread in self.threads.values():
            thread.start()
        # Subscribe, then look: the listener's first hint makes the loop look again.
        self.listener = self.notifier.listen(self._on_hint, {"job_scheduled", "ownership_lost"})
        self.checkup.started(self.listener)

    def say_that_it_stops(self) -> None:
        """To whoever looks at the workers; soon, and from the thread that does such things."""
        self.heartbeat.is_stopping = True
        self.rounds.hasten(self.heartbeat)

    @property
    def running(self) -> int:
        """Attempts that run, those that do not stop among them."""
        return sum(place.running for place in self.places)

    @property
    def is_stuck(self) -> bool:
        """Whether, after their end, a handler or a database that does not answer still holds a thread."""
        if self.async_slots and self.async_slots.is_stuck:
            return True
        return bool(self.running) or any(thread.is_alive for thread in self.threads.values())

    # What they tell each other

    def _on_hint(self, hint: Hint) -> None:
        self.queues.on_hint(hint)  # before the loop wakes up by it
        self.wake.on_hint(hint)
        self.keeper.on_hint(hint)

    def _free(self, type_name: str) -> int:
        return self.loop.free(type_name)

    def _look(self) -> None:
        self.wake.set()

    def _on_written(self, has_due: bool) -> None:
        if has_due or self.queues.has_limits or self._is_eager():
            self.wake.set()

    def _on_outcome(self, outcome: Outcome) -> None:
        if outcome.seconds:  # it ran
            self.turns.ran(outcome.job.type_name, outcome.seconds)
        self.notebook.ended(outcome.job.key)
        self.completer.put(outcome)

    def _on_reaped(self, jobs: Sequence[ReapedJob]) -> None:
        self.tally.reaped(jobs)
        self.wake.set()

    def _on_broken(self, attempt: AnyAttempt) -> None:
        self.leases.let_go(attempt.jobs)

    # How they are made

    def _threaded(self) -> Slots:
        return Slots(
            self._scope.slots,
            worker=self._scope.worker,
            on_outcome=self._on_outcome,
            on_room=self.wake.set,
            on_broken=self._on_broken,
            give_up=self._give_up,
            most_stuck=self._settings.MAX_STUCK_SLOTS,
        )

    def _event_loop(self) -> AsyncSlots | None:
        """None without an ``async def`` handler to run."""
        if not any(self._scope.registry.processor(name).is_async for name in self._scope.policies):
            return None
        return AsyncSlots(
            self._scope.async_slots,
            threads=self._settings.ASYNC_THREADS,
            worker=self._scope.worker,
            on_outcome=self._on_outcome,
            on_room=self.wake.set,
            on_broken=self._on_broken,
            give_up=self._give_up,
            most_stuck=self._settings.MAX_STUCK_SLOTS,
        )

    def _claim_loop(self) -> ClaimLoop:
        return ClaimLoop(
            worker=self._scope.worker,
            store=self._scope.store,
            registry=self._scope.registry,
            policies=self._scope.policies,
            queues=self.queues,
            leases=self.leases,
            lanes=self._lanes(),
            completer=self.completer,
            notebook=self.notebook,
            wake=self.wake,
            poll_seconds=self._scope.poll_seconds,
            max_jobs=self._scope.max_jobs,
        )

    def _lanes(self) -> list[Lane]:
        """One for all types whose attempts take one job, one for the async ones, one for each that takes several."""
        leases = {name: policy.lease.seconds for name, policy in self._scope.policies.items()}
        processors = {name: self._scope.registry.processor(name) for name in leases}
        lanes = []
        if self.async_slots:
            on_loop = {name: leases.pop(name) for name, processor in processors.items() if processor.is_async}
            lanes.append(Lane(self.async_slots, on_loop, make=self.async_slots.attempt))
        for name, processor in processors.items():
            if processor.batch_limit:
                lanes.append(Lane(self.slots, {name: leases.pop(name)}, processor.batch_limit, BatchAttempt))
        return [Lane(self.slots, leases), *lanes] if leases else lanes

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self._scope.store,
            worker=self._scope.worker,
            slots=lambda: sum(place.count for place in self.places),
            busy=lambda: self.running,
            stuck=lambda: sum(place.stuck for place in self.places),
            queues=self._scope.queues,
            type_names=self._scope.policies,
            seconds=self._settings.HEARTBEAT_SECONDS,
            on_seen=self.turns.place,
            on_leave=self.tally.step,
        )

    def _turns(self) -> Turns:
        scope = self._scope
        settings = scope.store.connection.settings_dict
        # By the whole address: databases of the same name on two servers are two.
        database = [str(settings[key]) for key in ("ENGINE", "HOST", "PORT", "NAME")]
        return Turns(
            self.notifier,
            group=group_of(database, scope.queues, scope.policies),
            poll_seconds=scope.poll_seconds,
            free=self._free,
            is_narrow=lambda: self.queues.has_limits,
            look=self._look,
        )

    def _reaper(self) -> Reaper:
        return Reaper(
            self._scope.store,
            self.leases,
            worker=self._scope.worker,
            backoff=resolve().backoff,
            backoffs=self._backoffs(),
            max_crashes=self._settings.MAX_CRASHES,
            seconds=self._settings.REAP_SECONDS,
            on_reaped=self._on_reaped,
        )

    def _backoffs(self) -> dict[str, Backoff]:
        """By job type. The worker's own policy is only about types that it serves."""
        processors = self._scope.registry.processors()
        known = {processor.job_type.name: resolve(*processor.policies) for processor in processors}
        return {name: policy.backoff for name, policy in {**known, **self._scope.policies}.items()}

    def _sweeper(self) -> Sweeper:
        return Sweeper(
            self._scope.store,
            worker=self._scope.worker,
            seconds=self._settings.SWEEP_SECONDS,
            is_on_duty=lambda: self.heartbeat.is_first,
        )

    def _pruner(self) -> list[Part]:
        """None when nothing is to be pruned, or not by workers."""
        seconds, rules = self._settings.PRUNE_SECONDS, rules_of(self._scope.registry)
        if seconds is None or not rules:
            return []
        return [Pruner(self._scope.store, rules, worker=self._scope.worker, seconds=seconds)]

    def _watch(self) -> Watch:
        timeouts = [policy.timeout_seconds for policy in self._scope.policies.values() if policy.timeout_seconds]
        patience = [self._scope.shortest_lease / 20, self._settings.STUCK_SECONDS / 2, 1]
        return Watch(
            self.leases,
            self.places,
            worker=self._scope.worker,
            seconds=min(*patience, *(seconds / 10 for seconds in timeouts)),
            stuck_seconds=self._settings.STUCK_SECONDS,
            on_outcome=self.completer.put,
            give_up=self._give_up,
        )

    def _checkup(self) -> Checkup:
        return Checkup(
            worker=self._scope.worker,
            threads=self.threads.values(),
            rounds=self.rounds,
            places=self.places,
            notifier=self.notifier,
            liveness_seconds=self._settings.LIVENESS_SECONDS,
        )
