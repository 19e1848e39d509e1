"""The names that other systems use: attributes of spans and metrics, and the metrics with their units."""

from typing import NamedTuple

SYSTEM = "django_jobchains"
SCOPE = "django_jobchains"

# Attributes with a name in OpenTelemetry's conventions.
MESSAGING_SYSTEM = "messaging.system"
QUEUE = "messaging.destination.name"
JOB_ID = "messaging.message.id"
CHAIN_ID = "messaging.message.conversation_id"
OPERATION = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
MESSAGE_COUNT = "messaging.batch.message_count"
ERROR_TYPE = "error.type"

# Attributes of this project.
JOB_TYPE = "jobchains.job.type"
ATTEMPT = "jobchains.job.attempt"
OUTCOME = "jobchains.job.outcome"
ABANDONED_REASON = "jobchains.attempt.abandoned_reason"
JOB_STATUS = "jobchains.job.status"
CHAIN_TYPE = "jobchains.chain.type"
CHAIN_STATUS = "jobchains.chain.status"
SLOT_STATE = "jobchains.slot.state"
SLOT_KIND = "jobchains.slot.kind"
SCHEDULE = "jobchains.schedule.name"
LIMIT = "jobchains.limit.name"
LIMIT_KIND = "jobchains.limit.kind"
TICK_OUTCOME = "jobchains.schedule.outcome"
REASON = "jobchains.reason"
BACKEND = "jobchains.notifier.backend"
HOOK = "jobchains.record.hook"
POOL_LEVEL = "jobchains.pool.level"
POOL_KEY = "jobchains.pool.key"
POOL_STATE = "jobchains.pool.state"
REQUESTED_LEVEL = "jobchains.isolation.requested"
ACTUAL_LEVEL = "jobchains.isolation.actual"
THREAD = "jobchains.thread.name"
PROCESS_OUTCOME = "jobchains.process.outcome"
DATABASE = "jobchains.database.alias"

#: The field or property of an event that has the value of an attribute, for counters of events.
EVENT_FIELDS = {
    QUEUE: "queue",
    OPERATION: "operation",
    ERROR_TYPE: "error_type",
    JOB_TYPE: "type_name",
    OUTCOME: "outcome",
    CHAIN_TYPE: "type_name",
    CHAIN_STATUS: "status",
    SCHEDULE: "schedule_name",
    REASON: "reason",
    BACKEND: "backend",
    POOL_LEVEL: "pool_level",
    POOL_KEY: "pool_key",
    REQUESTED_LEVEL: "requested",
    ACTUAL_LEVEL: "actual",
    THREAD: "thread",
    PROCESS_OUTCOME: "outcome",
}


class MetricName(NamedTuple):
    """A metric. An event class names the counter that its events increment."""

    name: str
    kind: str
    unit: str
    description: str
    attributes: tuple[str, ...]


def _counter(name: str, unit: str, description: str, *attributes: str) -> MetricName:
    return MetricName(name, "counter", unit, description, attributes)


def _up_down_counter(name: str, unit: str, description: str, *attributes: str) -> MetricName:
    return MetricName(name, "updowncounter", unit, description, attributes)


def _gauge(name: str, unit: str, description: str, *attributes: str) -> MetricName:
    return MetricName(name, "gauge", unit, description, attributes)


def _db_gauge(name: str, unit: str, description: str, *attributes: str) -> MetricName:
    """Return a gauge about a database. Its last attribute is the alias."""
    return _gauge(name, unit, description, *attributes, DATABASE)


def _histogram(name: str, description: str, *attributes: str) -> MetricName:
    """Return a histogram of durations."""
    return MetricName(name, "histogram", "s", description, attributes)


SENT = _counter("messaging.client.sent.messages", "{message}", "Jobs that were created", JOB_TYPE, QUEUE)
CONSUMED = _counter(
    "messaging.client.consumed.messages", "{message}", "Attempts at jobs and records that have ended", JOB_TYPE, QUEUE
)
PROCESS_DURATION = _histogram(
    "messaging.process.duration",
    "Duration of attempts, without the hooks of records",
    JOB_TYPE,
    QUEUE,
    OUTCOME,
    ERROR_TYPE,
)
OPERATION_DURATION = _histogram(
    "messaging.client.operation.duration",
    "Duration of the library's own transactions. For records, the type is the name of their worker",
    OPERATION,
    JOB_TYPE,
    ERROR_TYPE,
)
WAIT_DURATION = _histogram(
    "jobchains.job.wait.duration", "From when a job or a record was due until its first attempt began", JOB_TYPE, QUEUE
)
HOOK_DURATION = _histogram("jobchains.record.hook.duration", "Duration of hooks of records", JOB_TYPE, HOOK, ERROR_TYPE)
CHAIN_DURATION = _histogram(
    "jobchains.chain.duration", "From the creation of a chain to its end", CHAIN_TYPE, CHAIN_STATUS
)
ATTEMPT_ENDED = _counter("jobchains.attempt.ended", "{attempt}", "Attempts by their outcome", JOB_TYPE, OUTCOME)
REAPED = _counter("jobchains.job.reaped", "{job}", "Jobs and records whose worker died or hung", JOB_TYPE, OUTCOME)
LEASE_LOST = _counter(
    "jobchains.lease.lost", "{lease}", "Attempts that could not write their outcome", JOB_TYPE, REASON
)
SLOT_STUCK = _counter("jobchains.slot.stuck", "{slot}", "Handlers that did not stop when asked to", JOB_TYPE, REASON)
CHAIN_ENDED = _counter("jobchains.chain.ended", "{chain}", "Chains by how they ended", CHAIN_TYPE, CHAIN_STATUS)
BLOCKED_FAILED = _counter(
    "jobchains.blocked.failed",
    "{job}",
    "Jobs that failed without an attempt, because a blocker failed or was cancelled",
    JOB_TYPE,
)
JOB_EXPIRED = _counter(
    "jobchains.job.expired",
    "{job}",
    "Jobs that were cancelled because they had not started when they expired",
    JOB_TYPE,
)
RECORD_CANCELLED = _counter(
    "jobchains.record.cancelled", "{record}", "Records that were cancelled instead of being started", JOB_TYPE
)
OUTCOME_DELAYED = _counter(
    "jobchains.outcome.delayed", "{outcome}", "Outcomes that could not be written for a while", JOB_TYPE
)
CHILD_CRASHED = _counter(
    "jobchains.child.crashed", "{process}", "Child processes that died while they ran an attempt", JOB_TYPE
)
CHILD_KILLED = _counter(
    "jobchains.child.killed",
    "{process}",
    "Child processes that were killed because their attempt did not stop when asked to",
    JOB_TYPE,
    REASON,
)
CHILD_RECYCLED = _counter(
    "jobchains.child.recycled",
    "{process}",
    "Child processes that were replaced because they had reached a limit of their pool",
    POOL_LEVEL,
    POOL_KEY,
)
ISOLATION_WEAKENED = _counter(
    "jobchains.isolation.weakened",
    "{failure}",
    "Failures to start child processes after which attempts run with a weaker isolation",
    REQUESTED_LEVEL,
    ACTUAL_LEVEL,
)
ISOLATION_FAILED = _counter(
    "jobchains.isolation.failed",
    "{failure}",
    "Failures to start child processes of a strict isolation, whose jobs wait",
    REQUESTED_LEVEL,
)
THREAD_FAILED = _counter("jobchains.thread.failed", "{failure}", "Unexpected errors in threads of a worker", THREAD)
PROCESS_ENDED = _counter(
    "jobchains.process.ended",
    "{process}",
    "Worker processes of a supervisor that ended, or that could not be started or replaced",
    PROCESS_OUTCOME,
)
NOTIFIER_FAILED = _counter(
    "jobchains.notifier.failed", "{failure}", "Lost connections of listeners, and failures to connect again", BACKEND
)
TICKS = _counter(
    "jobchains.schedule.ticks",
    "{tick}",
    "Ticks of schedules: fired, skipped because of the previous chain, or missed",
    SCHEDULE,
    JOB_TYPE,
    TICK_OUTCOME,
)
TICKS_MISSED = _counter(
    "jobchains.schedule.missed", "{tick}", "Ticks of schedules at which no worker was running", SCHEDULE, JOB_TYPE
)
SCHEDULE_FAILED = _counter(
    "jobchains.schedule.failed",
    "{failure}",
    "Ticks of schedules that could not be fired, and are tried again",
    SCHEDULE,
)
SCHEDULE_DELAY = _histogram("jobchains.schedule.delay", "From a tick until its chain was enqueued", SCHEDULE, JOB_TYPE)
CODEC_FAILED = _counter(
    "jobchains.codec.failed",
    "{payload}",
    "Payloads, errors and log lines that could not be encoded or decoded",
    OPERATION,
    ERROR_TYPE,
)
SLOTS = _up_down_counter("jobchains.worker.slots", "{slot}", "Slots of this process", SLOT_STATE, SLOT_KIND)
SLOT_PEAK = _gauge(
    "jobchains.worker.slots.peak",
    "{slot}",
    "The most slots of this process that were in use at the same time, in the last minute or since the metrics were "
    "last collected. `thread` includes the slots that wait for child processes",
    SLOT_KIND,
)
HANDLERS_PEAK = _gauge(
    "jobchains.record.handlers.peak",
    "{record}",
    "The most handlers of records that ran at the same time in this process, in the last minute or since the metrics "
    "were last collected",
    JOB_TYPE,
)
POOL_CHILDREN = _up_down_counter(
    "jobchains.pool.children",
    "{process}",
    "Child processes of this process's workers",
    POOL_LEVEL,
    POOL_KEY,
    POOL_STATE,
)
POOL_WAITING = _up_down_counter(
    "jobchains.pool.waiting", "{attempt}", "Attempts that wait for a child process", POOL_LEVEL, POOL_KEY
)
POOL_MEMORY = _up_down_counter(
    "jobchains.pool.memory", "By", "Resident memory of child processes", POOL_LEVEL, POOL_KEY
)
QUEUE_JOBS = _db_gauge("jobchains.queue.jobs", "{job}", "Jobs that have not ended, up to a maximum", QUEUE, JOB_STATUS)
OLDEST_DUE = _db_gauge("jobchains.queue.oldest_due.age", "s", "How long the oldest due job has been waiting", QUEUE)
QUEUE_RECORDS = _db_gauge(
    "jobchains.queue.records", "{record}", "Records by their state, up to a maximum", QUEUE, JOB_TYPE, JOB_STATUS
)
OLDEST_RECORD = _db_gauge(
    "jobchains.queue.oldest_record.age", "s", "How long the oldest due record has been waiting", QUEUE, JOB_TYPE
)
LIMIT_RUNNING = _db_gauge(
    "jobchains.limit.running", "{job}", "Running jobs that count towards a limit", LIMIT_KIND, LIMIT
)
LIMIT_WAITING = _db_gauge(
    "jobchains.limit.waiting", "{job}", "Due jobs of limited types and queues, up to a maximum", LIMIT_KIND, LIMIT
)
LIMIT_CONCURRENCY = _db_gauge(
    "jobchains.limit.concurrency",
    "{job}",
    "Jobs that a limit allows to run at the same time. If the limit has keys, for each key",
    LIMIT_KIND,
    LIMIT,
)
STRANDED = _gauge(
    "jobchains.blocked.stranded",
    "{job}",
    "Blocked jobs that waited for nothing, found in the last ten minutes: must be 0",
)
NOTIFIER_CONNECTED = _gauge(
    "jobchains.notifier.connected", "1", "1 while wake-ups can arrive, 0 while workers poll", BACKEND
)
OLDEST_TRANSACTION = _db_gauge(
    "jobchains.database.oldest_transaction.age", "s", "Age of the database's oldest open transaction"
)

METRICS = tuple(value for value in list(vars().values()) if isinstance(value, MetricName))

#: Attributes that always have the same value. OpenTelemetry's conventions for messaging require them.
CONSTANTS = {
    SENT: {MESSAGING_SYSTEM: SYSTEM, OPERATION: "send"},
    CONSUMED: {MESSAGING_SYSTEM: SYSTEM, OPERATION: "process"},
    PROCESS_DURATION: {MESSAGING_SYSTEM: SYSTEM, OPERATION: "process"},
    OPERATION_DURATION: {MESSAGING_SYSTEM: SYSTEM},
}

#: The buckets of all histograms, in seconds: from 5 ms to an hour.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
