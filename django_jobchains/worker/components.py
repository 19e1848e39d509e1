"""Creates the components of a worker in the order of their dependencies."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from django_jobchains.attempts.batch_attempt import BatchAttempt
from django_jobchains.attempts.job_attempt import Environment
from django_jobchains.chains.pruning import retention_rules
from django_jobchains.notifications import Hint, Listener, get_notifier
from django_jobchains.records.declarations import RecordType
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
from django_jobchains.worker.threads import OwnedThread
from django_jobchains.worker.upkeep import LeaseRenewal, StuckAttempts
from django_jobchains.worker.wake_order import WakeOrder


class Components:
    """The components of a worker. ``give_up`` is called when one of them cannot continue."""

    def __init__(self, options: WorkerOptions, *, give_up: Callable[[], None]) -> None:
        self.context = context = WorkerContext(options, give_up)
        self.using = options.store.using
        self.outcome_writer = EndWriter(context, JobSink(context))
        self.slots = Slots(context, self.outcome_writer)
        isolations = [*(policy.isolation for policy in options.policies.values()), *options.record_isolations.values()]
        #: By isolation. Types with an equal isolation share them.
        self.child_slots = {each: ChildSlots(each, self.slots) for each in isolations if each.is_process}
        self.async_slots = AsyncSlots(context, self.outcome_writer) if self._has_async_handlers() else None
        self.pools: list[SlotPool] = [self.slots, *self.child_slots.values()]
        if self.async_slots:
            self.pools.append(self.async_slots)
        self.lanes = self._lanes()
        self.records = RecordWorkers(context, self._pool_of_records)
        self.notifier = get_notifier(self.using)
        self.claim_loop = ClaimLoop(context, self.lanes, self.outcome_writer, self.records)
        lanes = {name: lane for lane in self.lanes for name in lane.leases}
        self.wake_order = WakeOrder(context, self.notifier, lanes)
        self.renewal = LeaseRenewal(context)
        self.heartbeat = Heartbeat(context, self.pools, self.wake_order)
        self.scheduler = Scheduler(context, self.heartbeat)
        self.maintenance = PeriodicTasks(*self._periodic_tasks())
        #: A worker whose code declares schedules has a thread for them, so that nothing else delays a tick.
        self.scheduling = PeriodicTasks(self.scheduler) if self.scheduler.declared.names else self.maintenance
        self.heartbeat.on_gone_schedules = partial(self.scheduling.run_soon, self.scheduler)
        self.log_writer = LogWriter(context)
        self.stuck_attempts = StuckAttempts(context, self.pools, self.outcome_writer)
        self.threads = self._threads()
        self.listener: Listener | None = None
        self.health_monitor = HealthMonitor(context, self.threads.values(), self.maintenance, self.pools, self.notifier)

    def start(self) -> None:
        for pool in self.pools:
            pool.start()
        for thread in self.threads.values():
            thread.start()
        # The claim loop may have queried before the listener subscribed: its first hint causes another query.
        self.listener = self.notifier.listen(self.on_hint, {"job_scheduled", "ownership_lost"})
        self.health_monitor.started(self.listener)

    def on_hint(self, hint: Hint) -> None:
        self.context.queues.on_hint(hint)  # before the claim loop wakes up
        self.wake_order.on_hint(hint)
        self.renewal.on_hint(hint)
        self.records.on_hint(hint)
        if (seconds := self.scheduler.on_hint(hint)) is not None:
            self.scheduling.run_soon(self.scheduler, seconds)

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
        """Return the most slots of each kind that were in use at once since the last call, for a gauge."""
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

    def _has_async_handlers(self) -> bool:
        """Return whether a handler is an ``async def`` function, and runs in this process."""
        options = self.context.options
        in_threads = [name for name, policy in options.policies.items() if not policy.isolation.is_process]
        has_jobs = any(options.registry.processor(name).is_async for name in in_threads)
        return has_jobs or any(map(self._is_on_loop, options.records.values()))

    def _lanes(self) -> list[Lane]:
        """Return one lane for types whose attempts take one job, one for async types, and one for each batch type.

        Types that run in child processes have their own lane for each isolation.
        """
        policies = self.context.options.policies
        processors = {name: self.context.options.registry.processor(name) for name in policies}
        in_threads = [name for name in policies if policies[name].isolation not in self.child_slots]
        on_loop = [name for name in in_threads if processors[name].is_async]
        in_slots = [name for name in in_threads if name not in on_loop]
        lanes = self._lanes_of(in_slots, self.slots, single, BatchAttempt)
        if self.async_slots and on_loop:
            lanes.append(Lane(self.async_slots, self._environments(on_loop), make=self.async_slots.attempt))
        for isolation, slots in self.child_slots.items():
            names = [name for name in policies if policies[name].isolation == isolation]
            lanes += self._lanes_of(names, slots, IsolatedAttempt, IsolatedAttempt)
        return lanes

    def _lanes_of(
        self,
        names: Sequence[str],
        pool: SlotPool,
        make: Callable[[Sequence[Claimed], Environment], AnyAttempt],
        make_batch: Callable[[Sequence[Claimed], Environment], AnyAttempt],
    ) -> list[Lane]:
        limits = {name: self.context.options.registry.processor(name).batch_limit for name in names}
        batches = [Lane(pool, self._environments([name]), limit, make_batch) for name, limit in limits.items() if limit]
        singles = [name for name in names if not limits[name]]
        return [Lane(pool, self._environments(singles), make=make), *batches] if singles else batches

    def _environments(self, names: Sequence[str]) -> dict[str, Environment]:
        context, registry = self.context, self.context.options.registry
        return {
            name: Environment(
                registry.processor(name), context.options.policies[name], context.store, registry, context.log_buffer
            )
            for name in names
        }

    def _is_on_loop(self, kind: RecordType) -> bool:
        return kind.is_async and not self.context.options.record_isolations[kind.name].is_process

    def _pool_of_records(self, kind: RecordType) -> SlotPool:
        """Return the pool in which a model's records are handled."""
        if self.async_slots and self._is_on_loop(kind):
            return self.async_slots
        return self.child_slots.get(self.context.options.record_isolations[kind.name], self.slots)

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
        if settings.PRUNE_SECONDS is not None and (rules := retention_rules(options.registry)):
            yield Pruner(self.context.store, rules, worker=self.context.worker, seconds=settings.PRUNE_SECONDS)

    def _threads(self) -> dict[str, OwnedThread]:
        context = self.context
        steps: dict[str, Callable[[], object]] = {
            "claim-loop": self.claim_loop.step,
            "maintenance": self.maintenance.step,
        }
        if self.scheduling is not self.maintenance:
            steps["schedules"] = self.scheduling.step
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
