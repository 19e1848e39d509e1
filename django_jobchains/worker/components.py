"""Creates the components of a worker in the order of their dependencies."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from django_jobchains.attempts.batch_attempt import BatchAttempt
from django_jobchains.attempts.job_attempt import Environment
from django_jobchains.chains.pruning import retention_rules
from django_jobchains.declare.policies import AttemptPolicy
from django_jobchains.isolation import Isolation
from django_jobchains.notifications import Hint, Listener, get_notifier
from django_jobchains.records.declarations import RecordType
from django_jobchains.store.limits import Rotation
from django_jobchains.telemetry.probes import NotifierState, PoolCount, SlotCount
from django_jobchains.worker.caretakers import Pruner, Reaper, RecordResetter, Unblocker, known_kinds
from django_jobchains.worker.child_slots import ChildSlots
from django_jobchains.worker.claim_loop import ClaimLoop
from django_jobchains.worker.end_writer import EndWriter, JobSink
from django_jobchains.worker.event_loop import AsyncSlots
from django_jobchains.worker.health import HealthMonitor
from django_jobchains.worker.heartbeat import Heartbeat
from django_jobchains.worker.isolated.isolated_attempt import IsolatedAttempt
from django_jobchains.worker.log_writer import LogWriter
from django_jobchains.worker.maintenance import PeriodicTask, PeriodicTasks
from django_jobchains.worker.options import WorkerContext, WorkerOptions
from django_jobchains.worker.records import RecordWorkers
from django_jobchains.worker.scheduler import Scheduler
from django_jobchains.worker.slots import AnyAttempt, Claimed, Lane, SlotPool, Slots, single
from django_jobchains.worker.task_finder import TaskFinder
from django_jobchains.worker.threads import OwnedThread, waiting
from django_jobchains.worker.upkeep import LeaseRenewal, StuckAttempts
from django_jobchains.worker.wake_order import WakeOrder


class Components:
    """The components of a worker. ``give_up`` is called when one of them cannot continue."""

    is_started = False

    def __init__(self, options: WorkerOptions, *, give_up: Callable[[], None]) -> None:
        self.context = context = WorkerContext(options, give_up)
        self.using = options.store.using
        self.outcome_writer = EndWriter(context, JobSink(context))
        self.slots = Slots(context, self.outcome_writer)
        #: By isolation. Types with an equal isolation share them.
        self.child_slots: dict[Isolation, ChildSlots] = {}
        self.async_slots: AsyncSlots | None = None
        self.pools: list[SlotPool] = [self.slots]
        self.lanes: list[Lane] = []
        for name, policy in options.policies.items():
            self._add_type(name, policy)
        self.records = RecordWorkers(context, self._pool_of_records)
        self.notifier = get_notifier(self.using)
        self.claim_loop = ClaimLoop(context, self.lanes, self.outcome_writer, self.records)
        self.wake_order = WakeOrder(context, self.notifier, self._lanes_by_type())
        self.renewal = LeaseRenewal(context)
        self.heartbeat = Heartbeat(context, self.pools, self.wake_order)
        self.scheduler = Scheduler(context, self.heartbeat)
        self.task_finder = TaskFinder(context, self.heartbeat, self.serve, self.withdraw)
        self.pruner = Pruner(
            context.store,
            retention_rules(options.registry),
            worker=context.worker,
            seconds=context.settings.PRUNE_SECONDS or 0,
        )
        self.maintenance = PeriodicTasks(*self._periodic_tasks())
        #: A worker whose code declares schedules has a thread for them, so that nothing else delays a tick.
        self.scheduling = PeriodicTasks(self.scheduler) if self.scheduler.declared.names else self.maintenance
        #: Importing a task may take long, so that it has its own thread.
        self.finding = PeriodicTasks(self.task_finder) if options.finds_tasks else None
        self.heartbeat.on_gone_schedules = partial(self.scheduling.run_soon, self.scheduler)
        self.log_writer = LogWriter(context)
        self.stuck_attempts = StuckAttempts(context, self.pools, self.outcome_writer)
        self.threads = self._threads()
        self.listener: Listener | None = None
        self.health_monitor = HealthMonitor(context, self.threads.values(), self.maintenance, self.pools, self.notifier)

    def start(self) -> None:
        self.is_started = True
        for pool in self.pools:
            pool.start()
        for thread in self.threads.values():
            thread.start()
        # The claim loop may have queried before the listener subscribed: its first hint causes another query.
        self.listener = self.notifier.listen(self.on_hint, {"job_scheduled", "ownership_lost"})
        self.health_monitor.started(self.listener)

    def on_hint(self, hint: Hint) -> None:
        is_freed = self.context.queues.on_hint(hint)  # Before the claim loop wakes up.
        if is_freed and self.context.wake.accepts_hints:
            self.records.look_soon()
            self.context.wake.query_in(0.0)
        self.wake_order.on_hint(hint)
        self.renewal.on_hint(hint)
        self.records.on_hint(hint)
        if (seconds := self.scheduler.on_hint(hint)) is not None:
            self.scheduling.run_soon(self.scheduler, seconds)
        if self.finding is not None and (seconds := self.task_finder.on_hint(hint)) is not None:
            self.finding.run_soon(self.task_finder, seconds)

    def slot_counts(self) -> list[SlotCount]:
        """Return the slots of this worker by kind and state, for gauges. The kind of an idle slot is its own."""
        counts = []
        in_children = self.slots.in_children if self.child_slots else 0
        for kind, pool, elsewhere in (("thread", self.slots, in_children), ("async", self.async_slots, 0)):
            if pool is not None:
                busy = max(pool.running - pool.stuck - elsewhere, 0)
                states = {"idle": max(pool.count - pool.running, 0), "busy": busy, "stuck": pool.stuck}
                counts += [SlotCount(kind, state, count) for state, count in states.items()]
        return [*counts, SlotCount("process", "busy", in_children)] if self.child_slots else counts

    def slot_peaks(self) -> dict[str, int]:
        """Return the most slots of each kind that were in use at the same time since the last call, for a gauge."""
        peaks: dict[str, int] = {}
        for kind, pool in (("thread", self.slots), ("async", self.async_slots)):
            if pool is not None:
                peaks[kind], pool.peak = pool.peak, pool.running
        if self.child_slots:
            peaks["process"] = sum(slots.take_peak() for slots in self.child_slots.values())
        return peaks

    def pool_counts(self) -> list[PoolCount]:
        """Return the child processes of this worker, for gauges."""
        states = [(slots.pool.state(), len(slots.backlog)) for slots in self.child_slots.values()]
        return [
            PoolCount(pool.level, pool.key, pool.workers - pool.busy, pool.busy, waiting, pool.rss_bytes)
            for pool, waiting in states
        ]

    def notifier_state(self) -> NotifierState:
        """Return whether wake-ups can arrive, for gauges."""
        is_connected = self.listener is not None and self.listener.is_alive
        return NotifierState(type(self.notifier).__name__, is_connected)

    def announce_stop(self) -> None:
        """Send a heartbeat soon to report that the worker is stopping."""
        self.heartbeat.is_stopping = True
        self.maintenance.run_soon(self.heartbeat)

    @property
    def running(self) -> int:
        """The number of running attempts, including stuck ones."""
        return sum(pool.running for pool in self.pools)

    @property
    def is_stuck(self) -> bool:
        """Whether, after the end, a handler or an unresponsive database still occupies a thread."""
        if self.async_slots and self.async_slots.is_stuck:
            return True
        return bool(self.running) or any(thread.is_alive for thread in self.threads.values())

    # Creating them

    def serve(self, name: str, policy: AttemptPolicy) -> None:
        """Claim jobs of another type from now on. Called by one thread at a time, also while the worker runs.

        Raises ``ImproperlyConfigured`` if its isolation is strict, and child processes cannot start.
        """
        options = self.context.options
        lane = self._add_type(name, policy)
        options.policies = {**options.policies, name: policy}
        self.wake_order.serve(self._lanes_by_type())
        self.pruner.rules = retention_rules(options.registry)
        self.context.sharing_limits = options.registry.sharing_limits()
        if lane is not None:
            self.claim_loop.add(lane)
        self.context.wake.set()  # First: a query that is being made now does not set ``idle`` again.
        self.claim_loop.idle.clear()

    def withdraw(self, name: str) -> None:
        """Claim no more jobs of a type that ``serve`` has added."""
        options = self.context.options
        options.policies = {other: policy for other, policy in options.policies.items() if other != name}
        options.missing -= {name}
        for lane in self.lanes:
            lane.withdraw(name)
        self.wake_order.serve(self._lanes_by_type())

    def _lanes_by_type(self) -> dict[str, Lane]:
        return {name: lane for lane in self.lanes for name in lane.leases}

    def _add_type(self, name: str, policy: AttemptPolicy) -> Lane | None:
        """Add a type to the lane of its pool, and return the lane if it is new. Batches have their own lanes."""
        context, registry = self.context, self.context.options.registry
        processor = registry.processor(name)
        pool = self._pool(policy.isolation, is_async=processor.is_async)
        environment = Environment(
            processor, policy, context.store, registry, context.log_buffer, observers=context.observers
        )
        is_limited = processor.limits is not None
        lanes = [lane for lane in self.lanes if lane.pool is pool and lane.batch_limit is None]
        lane = next((lane for lane in lanes if (lane.rotation is not None) is is_limited), None)
        if lane is not None and processor.batch_limit is None:
            lane.add(name, environment)
            return None
        make: Callable[[Sequence[Claimed], Environment], AnyAttempt] = BatchAttempt if processor.batch_limit else single
        if isinstance(pool, ChildSlots):
            make = IsolatedAttempt
        elif isinstance(pool, AsyncSlots):
            make = pool.attempt
        rotation = Rotation() if is_limited else None
        self.lanes.append(Lane(pool, {name: environment}, processor.batch_limit, make, rotation))
        return self.lanes[-1]

    def _pool(self, isolation: Isolation, *, is_async: bool) -> SlotPool:
        """Return the pool of attempts with this isolation, and create it if it is the first."""
        if isolation.is_process:
            if isolation not in self.child_slots:
                self.child_slots[isolation] = ChildSlots(isolation, self.slots)
                self._add_pool(self.child_slots[isolation])
            return self.child_slots[isolation]
        if not is_async:
            return self.slots
        if self.async_slots is None:
            self.async_slots = AsyncSlots(self.context, self.outcome_writer)
            self._add_pool(self.async_slots)
        return self.async_slots

    def _add_pool(self, pool: SlotPool) -> None:
        self.pools.append(pool)
        if self.is_started:
            pool.start()

    def _pool_of_records(self, kind: RecordType) -> SlotPool:
        """Return the pool in which a model's records are handled."""
        return self._pool(self.context.options.record_isolations[kind.name], is_async=kind.is_async)

    def _periodic_tasks(self) -> Iterator[PeriodicTask]:
        options, settings = self.context.options, self.context.settings
        yield self.heartbeat
        yield self.context.counter
        yield Reaper(self.context)
        if known_kinds(options):
            yield RecordResetter(self.context)
        yield Unblocker(self.context, self.heartbeat)
        if not self.scheduler.declared.names:  # Others may have been created while workers run.
            yield self.scheduler
        if settings.PRUNE_SECONDS is not None and (self.pruner.rules or options.finds_tasks):
            yield self.pruner

    def call_observer(self) -> None:
        """Wait for a call of an observer, and make it: a step of their thread."""
        if self.context.observers.is_drained:
            with waiting():
                self.context.observers.wait()
        self.context.observers.make_next()

    def _threads(self) -> dict[str, OwnedThread]:
        context = self.context
        steps: dict[str, Callable[[], object]] = {
            "claim-loop": self.claim_loop.step,
            "maintenance": self.maintenance.step,
        }
        if self.scheduling is not self.maintenance:
            steps["schedules"] = self.scheduling.step
        if self.finding is not None:
            steps["tasks"] = self.finding.step
        if context.options.has_tasks:
            steps["observers"] = self.call_observer
        if context.options.slots:  # Otherwise only maintenance runs. The claim loop waits until it is stopped.
            steps |= {
                "outcome-writer": self.outcome_writer.step,
                "lease-renewal": self.renewal.step,
                "stuck-attempts": self.stuck_attempts.step,
                "log-writer": self.log_writer.step,
                **self.records.steps,
            }
        return {
            name: OwnedThread(name, step, worker=context.worker, give_up=context.give_up, using=self.using)
            for name, step in steps.items()
        }
