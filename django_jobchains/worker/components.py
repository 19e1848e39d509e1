"""Creates the components of a worker in the order of their dependencies."""

from collections import deque
from collections.abc import Callable, Sequence

from django_jobchains.attempts.attempt import Environment
from django_jobchains.attempts.batch_attempt import BatchAttempt
from django_jobchains.attempts.leases import HeldLeases
from django_jobchains.chains.retention import retention_rules
from django_jobchains.conf import get_settings
from django_jobchains.handlers.job_log import JobLogBuffer
from django_jobchains.isolation import Isolation
from django_jobchains.notifications import Hint, Listener, get_notifier
from django_jobchains.policies import Backoff, BackoffFunction, resolve
from django_jobchains.records.declarations import RecordType
from django_jobchains.telemetry.probes import NotifierState, PoolCount, SlotCount
from django_jobchains.worker.attempt_counter import AttemptCounter
from django_jobchains.worker.claim_loop import ClaimLoop
from django_jobchains.worker.claim_wait import WakeUp
from django_jobchains.worker.health import HealthMonitor
from django_jobchains.worker.isolated.isolated_attempt import IsolatedAttempt
from django_jobchains.worker.isolated.isolation_pool import IsolationPool
from django_jobchains.worker.lease_keeper import LeaseKeeper
from django_jobchains.worker.log_writer import LogWriter
from django_jobchains.worker.maintenance.heartbeat import Heartbeat
from django_jobchains.worker.maintenance.periodic_tasks import PeriodicTasks
from django_jobchains.worker.maintenance.pruner import Pruner
from django_jobchains.worker.maintenance.reaper import Reaper
from django_jobchains.worker.maintenance.sweeper import Sweeper
from django_jobchains.worker.options import WorkerOptions
from django_jobchains.worker.outcome_writer import OutcomeWriter
from django_jobchains.worker.queue_limits import ServedQueues
from django_jobchains.worker.records.component import RecordWorkers
from django_jobchains.worker.records.leases import RecordLeases
from django_jobchains.worker.slots.child_slots import ChildSlots, WaitingAttempts
from django_jobchains.worker.slots.event_loop import AsyncSlots
from django_jobchains.worker.slots.lanes import AnyAttempt, Claimed, Lane, SlotPool, single
from django_jobchains.worker.slots.threads import ClaimedQueue, ClaimedQueues, Slots
from django_jobchains.worker.slots.watchdog import Watchdog
from django_jobchains.worker.threads import OwnedThread
from django_jobchains.worker.wake_order import WakeOrder, group_of


class Components:
    """The components of a worker. ``give_up`` is called when one of them cannot continue."""

    def __init__(self, options: WorkerOptions, *, give_up: Callable[[], None]) -> None:
        self._options = options
        self.using = options.store.using
        self._settings = get_settings()
        self._give_up = give_up
        self.wake = WakeUp(is_eager=options.max_jobs is not None)
        self.leases = HeldLeases(options.store, options.worker)
        self.record_leases = RecordLeases(options.store, options.worker)
        self.queues = ServedQueues(options.store, self.leases, options.queues, self.record_leases)
        self.log_buffer = JobLogBuffer()
        self._create_pools()
        self.records = self._record_workers()
        self._create_hint_receivers()
        self._create_maintenance()
        self._create_threads()
        self.listener: Listener | None = None
        self.health_monitor = HealthMonitor(
            self.threads.values(),
            self.maintenance,
            self.pools,
            self.isolation_pools,
            self.notifier,
            worker=options.worker,
            liveness_seconds=self._settings.LIVENESS_SECONDS,
        )

    def start(self) -> None:
        for pool in self.pools:
            pool.start()
        for thread in self.threads.values():
            thread.start()
        # The claim loop may have queried before the listener subscribed: its first hint causes another query.
        self.listener = self.notifier.listen(self.on_hint, {"job_scheduled", "ownership_lost"})
        self.health_monitor.started(self.listener)

    def on_hint(self, hint: Hint) -> None:
        self.queues.on_hint(hint)  # before the claim loop wakes up
        self.wake_order.on_hint(hint)
        self.lease_keeper.on_hint(hint)
        self.records.on_hint(hint)

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
        states = [(slots.pool.state(), len(slots.waiting)) for slots in self.child_slots.values()]
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
    def isolation_pools(self) -> list[IsolationPool]:
        return [slots.pool for slots in self.child_slots.values()]

    @property
    def is_stuck(self) -> bool:
        """Whether, after the end, a handler or an unresponsive database still occupies a thread."""
        if self.async_slots and self.async_slots.is_stuck:
            return True
        return bool(self.running) or any(thread.is_alive for thread in self.threads.values())

    # Creating them

    def _create_pools(self) -> None:
        options, settings = self._options, self._settings
        claimed: ClaimedQueue = deque()
        isolations = [policy.isolation for policy in options.policies.values()]
        isolations += options.record_isolations.values()
        for_children: dict[Isolation, WaitingAttempts] = {each: deque() for each in isolations if each.is_process}
        self.counter = AttemptCounter(options.store, worker=options.worker, seconds=settings.HEARTBEAT_SECONDS)
        self._claimed = ClaimedQueues([claimed, *for_children.values()]) if for_children else claimed
        self.outcome_writer = self._outcome_writer(self._claimed)
        self.slots = Slots(
            options.slots,
            claimed,
            self.outcome_writer,
            self.leases,
            self.wake,
            worker=options.worker,
            give_up=self._give_up,
            max_stuck=settings.MAX_STUCK_SLOTS,
        )
        self.async_slots = self._event_loop()
        self.child_slots = self._child_slots(for_children)
        self.pools: list[SlotPool] = [self.slots, *self.child_slots.values()]
        if self.async_slots:
            self.pools.append(self.async_slots)
        self.lanes = self._lanes()

    def _outcome_writer(self, claimed: ClaimedQueue | ClaimedQueues) -> OutcomeWriter:
        return OutcomeWriter(
            self._options.store,
            self.leases,
            self.queues,
            self.counter,
            self.log_buffer,
            self.wake,
            worker=self._options.worker,
            claimed=claimed,
        )

    def _child_slots(self, queues: dict[Isolation, WaitingAttempts]) -> dict[Isolation, ChildSlots]:
        """Return the slots for each isolation in child processes. Types with an equal isolation share them."""
        options = self._options
        return {
            isolation: ChildSlots(IsolationPool(isolation, options.slots, options.worker), self.slots, queue)
            for isolation, queue in queues.items()
        }

    def _event_loop(self) -> AsyncSlots | None:
        """Return None if no handler is an ``async def`` function."""
        options, settings = self._options, self._settings
        in_threads = [name for name, policy in options.policies.items() if not policy.isolation.is_process]
        has_jobs = any(options.registry.processor(name).is_async for name in in_threads)
        if not (has_jobs or any(self._is_on_loop(kind) for kind in options.records.values())):
            return None
        return AsyncSlots(
            options.async_slots,
            self.outcome_writer,
            self.leases,
            self.wake,
            threads=settings.ASYNC_THREADS,
            worker=options.worker,
            give_up=self._give_up,
            max_stuck=settings.MAX_STUCK_SLOTS,
        )

    def _lanes(self) -> list[Lane]:
        """Return one lane for types whose attempts take one job, one for async types, and one for each batch type.

        Types that run in child processes have their own lane for each isolation.
        """
        policies = self._options.policies
        processors = {name: self._options.registry.processor(name) for name in policies}
        in_threads = [name for name in policies if policies[name].isolation not in self.child_slots]
        on_loop = [name for name in in_threads if processors[name].is_async]
        in_slots = [name for name in in_threads if name not in on_loop]
        lanes = self._lanes_of(in_slots, self.slots, single, BatchAttempt)
        if self.async_slots and on_loop:
            lanes.append(Lane(self.async_slots, self._leases(on_loop), make=self.async_slots.attempt))
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
        limits = {name: self._options.registry.processor(name).batch_limit for name in names}
        batches = [Lane(pool, self._leases([name]), limit, make_batch) for name, limit in limits.items() if limit]
        leases = self._leases([name for name in names if not limits[name]])
        return [Lane(pool, leases, make=make), *batches] if leases else batches

    def _leases(self, names: Sequence[str]) -> dict[str, float]:
        return {name: self._options.policies[name].lease.seconds for name in names}

    def _record_workers(self) -> RecordWorkers:
        options, settings = self._options, self._settings
        return RecordWorkers(
            options.store,
            options.records,
            [kind for kind in options.registry.record_types() if kind.is_in(options.store.using)],
            self.record_leases,
            self._record_pool,
            self._claimed,
            self.queues,
            self.counter,
            self.wake,
            worker=options.worker,
            hostname=options.name,
            poll_seconds=options.poll_seconds,
            reap_seconds=settings.REAP_SECONDS,
        )

    def _is_on_loop(self, kind: RecordType) -> bool:
        return kind.is_async and not self._options.record_isolations[kind.name].is_process

    def _record_pool(self, kind: RecordType) -> SlotPool:
        """Return the pool in which a model's records are handled."""
        if self.async_slots and self._is_on_loop(kind):
            return self.async_slots
        return self.child_slots.get(self._options.record_isolations[kind.name], self.slots)

    def _create_hint_receivers(self) -> None:
        options = self._options
        self.notifier = get_notifier(options.store.using)
        self.claim_loop = ClaimLoop(
            options, self.lanes, self.leases, self.queues, self.outcome_writer, self.log_buffer, self.wake, self.records
        )
        self.wake_order = WakeOrder(
            self.wake,
            self.notifier,
            {name: lane for lane in self.lanes for name in lane.leases},
            self.queues,
            self.counter,
            group=group_of(options.store.connection.settings_dict, options.queues, options.type_names),
            poll_seconds=options.poll_seconds,
        )
        self.lease_keeper = LeaseKeeper(self.leases, options.worker, min(options.shortest_lease_seconds / 6, 5))

    def _create_maintenance(self) -> None:
        options, settings, store = self._options, self._settings, self._options.store
        self.heartbeat = Heartbeat(
            store,
            self.pools,
            self.wake_order,
            self.counter,
            worker=options.worker,
            queues=options.queues,
            type_names=options.type_names,
            seconds=settings.HEARTBEAT_SECONDS,
            isolation_pools=self.isolation_pools,
        )
        reaper = Reaper(
            store,
            self.leases,
            self.counter,
            self.wake,
            worker=options.worker,
            backoff=resolve().backoff,
            backoffs=self._backoffs(),
            max_crashes=settings.MAX_CRASHES,
            seconds=settings.REAP_SECONDS,
        )
        sweeper = Sweeper(store, self.heartbeat, worker=options.worker, seconds=settings.SWEEP_SECONDS)
        self.maintenance = PeriodicTasks(
            self.heartbeat, self.counter, reaper, *self.records.periodic_tasks, sweeper, *self._pruners()
        )

    def _backoffs(self) -> dict[str, Backoff | BackoffFunction]:
        """Return the backoffs by job type. The worker's own policy applies only to types that it serves."""
        processors = self._options.registry.processors()
        known = {processor.job_type.name: resolve(*processor.policies) for processor in processors}
        return {name: policy.backoff for name, policy in {**known, **self._options.policies}.items()}

    def _pruners(self) -> list[Pruner]:
        """Return the pruners; none if nothing is to be pruned, or if workers do not prune."""
        seconds, rules = self._settings.PRUNE_SECONDS, retention_rules(self._options.registry)
        if seconds is None or not rules:
            return []
        return [Pruner(self._options.store, rules, worker=self._options.worker, seconds=seconds)]

    def _create_threads(self) -> None:
        options = self._options
        self.log_writer = LogWriter(options.store, self.log_buffer, worker=options.worker)
        self.watchdog = self._watchdog()
        steps = {
            "claim-loop": self.claim_loop.step,
            "outcome-writer": self.outcome_writer.step,
            "maintenance": self.maintenance.step,
            "lease-keeper": self.lease_keeper.step,
            "watchdog": self.watchdog.step,
            "log-writer": self.log_writer.step,
            **self.records.steps,
        }
        if not options.slots:  # Maintenance only. The claim loop waits until it is stopped.
            steps = {name: steps[name] for name in ("claim-loop", "maintenance")}
        self.threads = {
            name: OwnedThread(name, step, worker=options.worker, give_up=self._give_up, using=options.store.using)
            for name, step in steps.items()
        }

    def _watchdog(self) -> Watchdog:
        options, stuck_seconds = self._options, self._settings.STUCK_SECONDS
        timeouts = [policy.timeout_seconds for policy in options.policies.values()]
        timeouts += [kind.max_runtime_seconds for kind in options.records.values()]
        return Watchdog(
            self.leases,
            self.record_leases,
            self.pools,
            self.outcome_writer,
            worker=options.worker,
            seconds=min(
                options.shortest_lease_seconds / 20, stuck_seconds / 2, 1, *(seconds / 10 for seconds in timeouts)
            ),
            stuck_seconds=stuck_seconds,
            give_up=self._give_up,
        )
