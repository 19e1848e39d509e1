"""The jobs. Each attempt writes its start and its end to the journal, and its effects in the completing transaction.

An attempt has a token, which it also returns, so that the oracle knows whose results a later step has received.
"""

import asyncio
import math
import random
from contextlib import contextmanager
from uuid import UUID, uuid4

from django_jobchains.pools import Isolation
from django_jobchains.processors import Backoff, Batch, Concurrency, Lease, Processors, Rate, RunningJob
from django_jobchains.records import RecordRun
from tests.soak import journal
from tests.soak.models import Effect, Letter, Order, Parcel

LEASE_SECONDS = 8
#: The limits, which the oracle knows too. Some of them, and the rates, are changed at run time.
QUEUE = "narrow"
LIMITS = {"soak.by_key": 2, "soak.by_type": 3, "soak.group": 4, "soak.parcels": 2}
RATES = {
    "soak.rated": Rate(5, per=10),
    "soak.rated_by_key": Rate(5, per=10, burst=5, key="key"),
    "soak.post": Rate(10, per=10, burst=10, group="soak.post"),
}
SCHEDULES = ("first", "second")

processors = Processors(lease=Lease(LEASE_SECONDS), backoff=Backoff(0.1, 1, 0.1, 0), max_attempts=math.inf)


@contextmanager
def attempt(job_id, order, claimed_at, counted="", rated=""):
    """Write the start and the end of the work to the journal, and yield the token of the attempt.

    ``counted`` and ``rated``: the names of its limit and its rate. The end is written before the job is completed,
    because another one may start as soon as it is.
    """
    token = uuid4().hex[:16]
    facts = {"order": order, "job": str(job_id), "claimed": claimed_at.timestamp(), "counted": counted, "rated": rated}
    journal.write("start", token=token, **facts)
    try:
        yield token
    finally:
        journal.write("end", token=token)


def work(job, seconds=0.3, **names):
    """Work for up to this time. Return the token of the attempt."""
    with attempt(job.id, job.input["order"], job.last_attempt_at, **names) as token:
        job.signal.wait(random.uniform(0, seconds))
        job.signal.raise_if_aborted()
    return token


def effect(job, what, token, seen=""):
    Effect.objects.create(order_id=job.input["order"], what=what, job_id=job.id, token=token, seen=seen)


def writes(what, name="", *, seconds=0.3, counted="", rated="", by_key=False, **options):
    """Register a type whose handler writes one effect and returns its token."""

    def handler(job: RunningJob[dict]):
        suffix = f" {job.input['key']}" if by_key else ""
        token = work(job, seconds, counted=counted and counted + suffix, rated=rated and rated + suffix)
        with job.complete():
            effect(job, what, token, seen=job.input.get("from", ""))
            return token

    return processors.register(f"soak.{name or what}", **options)(handler)


plain = writes("done", "plain")
long = writes("done", "long", seconds=1)
isolated = writes("done", "isolated", isolation=Isolation("process", key="soak", max_workers=1, grace_seconds=1))
part = writes("part")
left = writes("left")
right = writes("right")
kept = writes("kept")

KEYED = Concurrency(2, key="key")
by_key = writes("done", "by_key", counted="soak.by_key", by_key=True, concurrency=KEYED)
by_type = writes("done", "by_type", counted="soak.by_type", concurrency=Concurrency(3), fair="key")
GROUP = Concurrency(4, group="soak.group")
of_group = writes("done", "of_group", counted="soak.group", concurrency=GROUP)
also_of_group = writes("done", "also_of_group", counted="soak.group", concurrency=GROUP)
narrow = writes("done", "narrow", counted=f"queue {QUEUE}", queue=QUEUE)
rated = writes("done", "rated", rated="soak.rated", rate=RATES["soak.rated"])
BY_KEY = RATES["soak.rated_by_key"]
rated_by_key = writes("done", "rated_by_key", rated="soak.rated_by_key", by_key=True, rate=BY_KEY)
postcard = writes("done", "postcard", rated="soak.post", rate=RATES["soak.post"])


@processors.register("soak.branch", continues_with=["soak.left", "soak.right"])
def branch(job: RunningJob[dict]):
    token = work(job)
    with job.complete():
        effect(job, "branched", token)
        return job.continue_with(random.choice(["soak.left", "soak.right"]), {**job.input, "from": token})


@processors.register("soak.returned", continues_with=["soak.kept"])
def returned(job: RunningJob[dict]):
    """Return without a transaction, so that the worker writes the result in a batch."""
    return job.continue_with("soak.kept", {**job.input, "from": work(job)})


@processors.register("soak.gather")
def gather(job: RunningJob[dict]):
    token = work(job)
    with job.complete():
        effect(job, "gathered", token, seen=",".join(sorted(chain.output for chain in job.blockers)))


@processors.register("soak.batched", batch_limit=25)
def batched(jobs: Batch[dict]):
    """Write the effects of all jobs of a batch in one transaction."""
    tokens = [work(job, 0.02) for job in jobs]
    with jobs.complete():
        for job, token in zip(jobs, tokens, strict=True):
            effect(job, "done", token)


@processors.register("soak.awaited")
async def awaited(job: RunningJob[dict]):
    with attempt(job.id, job.input["order"], job.last_attempt_at) as token:
        await asyncio.sleep(random.uniform(0, 0.5))
    await job.acomplete(lambda: effect(job, "done", token))


@processors.register("soak.fails", max_attempts=2, on_failure="soak.failed")
def fails(job: RunningJob[dict]):
    """Fail until a person has mended the order."""
    token = work(job, 0.01)
    if not Order.objects.get(pk=job.input["order"]).is_mended:
        raise ValueError("not mended")
    with job.complete():
        effect(job, "done", token)


@processors.register("soak.failed")
def failed(job: RunningJob[dict]):
    """Write which attempt was the last one before the job failed."""
    failure = job.input
    with attempt(job.id, failure["input"]["order"], job.last_attempt_at) as token:
        seen = f"{failure['job_id']} {failure['attempt']}"
    with job.complete():
        Effect.objects.create(order_id=failure["input"]["order"], what="failed", job_id=job.id, token=token, seen=seen)


@processors.register("soak.tick")
def tick(job: RunningJob[None]):
    order = str(UUID(int=0))
    with attempt(job.id, order, job.last_attempt_at) as token, job.complete():
        seen = f"{job.schedule_name} {int(job.scheduled_for.timestamp())}"
        Effect.objects.create(order_id=order, what="tick", job_id=job.id, token=token, seen=seen)


for schedule in SCHEDULES:
    processors.schedule(schedule, tick, every=1, on_missed="run_all")


@processors.records(
    Parcel, name="soak.parcels", concurrency=Concurrency(2, key="depot"), stalled_after=LEASE_SECONDS,
    heartbeat_every=1, max_resets=1_000, retry_after=0.1, max_attempts=1_000, poll_every=1,
)  # fmt: skip
def deliver(parcel: Parcel, run: RecordRun):
    hand_over(parcel, run, counted=f"soak.parcels {parcel.depot}")


@processors.records(
    Letter, name="soak.letters", rate=RATES["soak.post"], stalled_after=LEASE_SECONDS, heartbeat_every=1,
    max_resets=1_000, retry_after=0.1, max_attempts=1_000, poll_every=1,
)  # fmt: skip
def post(letter: Letter, run: RecordRun):
    """Share a rate with the postcards, which are jobs."""
    hand_over(letter, run, rated="soak.post")


def hand_over(record, run, **names):
    with attempt(record.order_id, str(record.order_id), record.started_at, **names) as token:
        run.signal.wait(random.uniform(0, 0.3))
        run.signal.raise_if_aborted()
    with run.complete():
        Effect.objects.create(order_id=record.order_id, what="done", job_id=record.order_id, token=token)
