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

#: The field or property of an event that has the value of an attribute, for counters of events.
EVENT_FIELDS = {
    QUEUE: "queue",
    OPERATION: "operation",
    ERROR_TYPE: "error_type",
    JOB_TYPE: "type_name",
    OUTCOME: "outcome",
    CHAIN_TYPE: "type_name",
    CHAIN_STATUS: "status",
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


SENT = MetricName("messaging.client.sent.messages", "counter", "{message}", "Jobs that were created", (JOB_TYPE, QUEUE))
CONSUMED = MetricName(
    "messaging.client.consumed.messages",
    "counter",
    "{message}",
    "Attempts at jobs and records that have ended",
    (JOB_TYPE, QUEUE),
)
PROCESS_DURATION = MetricName(
    "messaging.process.duration",
    "histogram",
    "s",
    "Duration of attempts, without the hooks of records",
    (JOB_TYPE, QUEUE, OUTCOME, ERROR_TYPE),
)
OPERATION_DURATION = MetricName(
    "messaging.client.operation.duration",
    "histogram",
    "s",
    "Duration of the library's own transactions, never sampled; of records, by the name of their worker",
    (OPERATION, JOB_TYPE, ERROR_TYPE),
)
WAIT_DURATION = MetricName(
    "jobchains.job.wait.duration",
    "histogram",
    "s",
    "From when a job or a record was due until its first attempt began",
    (JOB_TYPE, QUEUE),
)
HOOK_DURATION = MetricName(
    "jobchains.record.hook.duration", "histogram", "s", "Duration of hooks of records", (JOB_TYPE, HOOK, ERROR_TYPE)
)
CHAIN_DURATION = MetricName(
    "jobchains.chain.duration",
    "histogram",
    "s",
    "From the creation of a chain to its end",
    (CHAIN_TYPE, CHAIN_STATUS),
)
ATTEMPT_ENDED = MetricName(
    "jobchains.attempt.ended", "counter", "{attempt}", "Attempts by their outcome", (JOB_TYPE, OUTCOME)
)
REAPED = MetricName(
    "jobchains.job.reaped", "counter", "{job}", "Jobs and records whose worker died or hung", (JOB_TYPE, OUTCOME)
)
LEASE_LOST = MetricName(
    "jobchains.lease.lost", "counter", "{lease}", "Attempts that could not write their outcome", (JOB_TYPE, REASON)
)
SLOT_STUCK = MetricName(
    "jobchains.slot.stuck", "counter", "{slot}", "Handlers that did not stop when asked to", (JOB_TYPE, REASON)
)
CHAIN_ENDED = MetricName(
    "jobchains.chain.ended", "counter", "{chain}", "Chains by how they ended", (CHAIN_TYPE, CHAIN_STATUS)
)
BLOCKED_FAILED = MetricName(
    "jobchains.blocked.failed",
    "counter",
    "{job}",
    "Jobs that failed without an attempt, because a blocker failed or was cancelled",
    (JOB_TYPE,),
)
RECORD_CANCELLED = MetricName(
    "jobchains.record.cancelled",
    "counter",
    "{record}",
    "Records that were cancelled instead of being started",
    (JOB_TYPE,),
)
OUTCOME_DELAYED = MetricName(
    "jobchains.outcome.delayed", "counter", "{outcome}", "Outcomes that could not be written for a while", (JOB_TYPE,)
)
CHILD_CRASHED = MetricName(
    "jobchains.child.crashed",
    "counter",
    "{process}",
    "Child processes that died while they ran an attempt",
    (JOB_TYPE,),
)
CHILD_KILLED = MetricName(
    "jobchains.child.killed",
    "counter",
    "{process}",
    "Child processes that were killed because their attempt did not stop when asked to",
    (JOB_TYPE, REASON),
)
CHILD_RECYCLED = MetricName(
    "jobchains.child.recycled",
    "counter",
    "{process}",
    "Child processes that were replaced because they had reached a limit of their pool",
    (POOL_LEVEL, POOL_KEY),
)
ISOLATION_WEAKENED = MetricName(
    "jobchains.isolation.weakened",
    "counter",
    "{failure}",
    "Failures to start child processes after which attempts run with a weaker isolation",
    (REQUESTED_LEVEL, ACTUAL_LEVEL),
)
ISOLATION_FAILED = MetricName(
    "jobchains.isolation.failed",
    "counter",
    "{failure}",
    "Failures to start child processes of a strict isolation, whose jobs wait",
    (REQUESTED_LEVEL,),
)
THREAD_FAILED = MetricName(
    "jobchains.thread.failed", "counter", "{failure}", "Errors that ended the step of a worker's thread", (THREAD,)
)
PROCESS_ENDED = MetricName(
    "jobchains.process.ended",
    "counter",
    "{process}",
    "Worker processes of a supervisor that ended, or that could not be started or replaced",
    (PROCESS_OUTCOME,),
)
NOTIFIER_FAILED = MetricName(
    "jobchains.notifier.failed",
    "counter",
    "{failure}",
    "Lost connections of listeners, and failures to connect again",
    (BACKEND,),
)
CODEC_FAILED = MetricName(
    "jobchains.codec.failed",
    "counter",
    "{payload}",
    "Payloads, errors and log lines that could not be encoded or decoded",
    (OPERATION, ERROR_TYPE),
)
SLOTS = MetricName(
    "jobchains.worker.slots", "updowncounter", "{slot}", "Slots of this process", (SLOT_STATE, SLOT_KIND)
)
SLOT_PEAK = MetricName(
    "jobchains.worker.slots.peak",
    "gauge",
    "{slot}",
    "The most slots of this process that were in use at once since the metrics were last collected. `thread` includes "
    "the slots that wait for child processes",
    (SLOT_KIND,),
)
HANDLERS_PEAK = MetricName(
    "jobchains.record.handlers.peak",
    "gauge",
    "{record}",
    "The most handlers of records that ran at once in this process since the metrics were last collected",
    (JOB_TYPE,),
)
POOL_CHILDREN = MetricName(
    "jobchains.pool.children",
    "updowncounter",
    "{process}",
    "Child processes of this process's workers",
    (POOL_LEVEL, POOL_KEY, POOL_STATE),
)
POOL_WAITING = MetricName(
    "jobchains.pool.waiting",
    "updowncounter",
    "{attempt}",
    "Attempts that wait for a child process",
    (POOL_LEVEL, POOL_KEY),
)
POOL_MEMORY = MetricName(
    "jobchains.pool.memory", "updowncounter", "By", "Resident memory of child processes", (POOL_LEVEL, POOL_KEY)
)
QUEUE_JOBS = MetricName(
    "jobchains.queue.jobs", "gauge", "{job}", "Jobs that have not ended, counted to a limit", (QUEUE, JOB_STATUS)
)
OLDEST_DUE = MetricName("jobchains.queue.oldest_due.age", "gauge", "s", "How long the oldest due job waits", (QUEUE,))
QUEUE_RECORDS = MetricName(
    "jobchains.queue.records",
    "gauge",
    "{record}",
    "Records by their state, counted to a limit",
    (QUEUE, JOB_TYPE, JOB_STATUS),
)
OLDEST_RECORD = MetricName(
    "jobchains.queue.oldest_record.age", "gauge", "s", "How long the oldest due record waits", (QUEUE, JOB_TYPE)
)
STRANDED = MetricName(
    "jobchains.blocked.stranded",
    "gauge",
    "{job}",
    "Blocked jobs that waited for nothing, found in the last ten minutes: must be 0",
    (),
)
NOTIFIER_CONNECTED = MetricName(
    "jobchains.notifier.connected", "gauge", "1", "1 while wake-ups can arrive, 0 while workers poll", (BACKEND,)
)
OLDEST_TRANSACTION = MetricName(
    "jobchains.database.oldest_transaction.age", "gauge", "s", "Age of the database's oldest open transaction", ()
)

METRICS = tuple(value for value in list(vars().values()) if isinstance(value, MetricName))

#: The buckets of all histograms, in seconds: from 5 ms to an hour.
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)
