"""Creates the rows of a busy shop for the screenshots, and prints the ids of the chains that they show."""

import random
from collections import Counter
from datetime import timedelta
from itertools import count
from zoneinfo import ZoneInfo

from tests.browser.scripts.project import answer  # isort: split

from django.db import transaction
from django.utils import timezone
from shop.models import Order, Product, SupplierImport

from django_jobchains import queues
from django_jobchains.db.ids import new_id
from django_jobchains.models import (
    AttemptCount,
    FailedAttempt,
    Job,
    JobBlocker,
    JobProgress,
    LogLine,
    Schedule,
    WorkerPresence,
)

NOW = timezone.now()
#: When the nightly schedules tick.
TONIGHT = NOW.astimezone(ZoneInfo("Europe/Berlin")).replace(hour=3, minute=0, second=0, microsecond=0)
NEXT_NIGHT = TONIGHT + timedelta(days=TONIGHT <= NOW)
ERROR = "shop.gateway.GatewayTimeout: no connection to the payment service"
TRACEBACK = f"""Traceback (most recent call last):
  File "/srv/shop/jobs.py", line 46, in charge
    reference = gateway.charge(order.card, order.total, idempotency_key=str(job.id))
  File "/srv/shop/gateway.py", line 38, in charge
    raise GatewayTimeout("no connection to the payment service")
{ERROR}
"""
#: Types, each with its completed and failed attempts per hour, and its mean and longest seconds.
TYPES = (
    ("shop.charge", 412, 9, 0.31, 2.4),
    ("shop.send_receipt", 398, 1, 0.12, 0.9),
    ("shop.credit_points", 397, 0, 0.02, 0.2),
    ("shop.import_part", 44, 3, 2.6, 14.0),
    ("shop.follow_parcel", 230, 0, 0.4, 1.8),
    ("shop.report_sales", 1, 0, 38.0, 38.0),
)
STEPS = ("shop.charge", "shop.send_receipt", "shop.credit_points")
numbers = count(4101)
chance = random.Random(7)


def ago(minutes):
    return NOW - timedelta(minutes=minutes)


def job(type_name, minutes, **fields):
    """Create a job that was enqueued this many minutes ago, alone in its chain unless the fields differ."""
    id_ = new_id()
    usual = {
        "id": id_,
        "chain_id": id_,
        "chain_index": 0,
        "chain_type_name": type_name,
        "type_name": type_name,
        "queue": "orders",
        "status": "pending",
        "input": {"order_id": next(numbers)},
        "created_at": ago(minutes),
        "run_at": ago(minutes),
    }
    return Job(**{**usual, **fields})


def ended(minutes, seconds):
    start = ago(minutes)
    times = {"last_attempt_at": start, "finished_at": start + timedelta(seconds=seconds)}
    return {"status": "completed", "attempt": 1, "lease_number": 1, "completed_by": "tea-1:4012", **times}


def order(minutes):
    """Create a chain of an order that was charged, with a receipt and points."""
    number = next(numbers)
    inputs, jobs = ({}, {"payment_reference": f"pay_{number}"}, {"points": 57}), []
    for index, type_name in enumerate(STEPS):
        fields = {"chain_index": index, "chain_type_name": STEPS[0], "input": {"order_id": number, **inputs[index]}}
        if jobs:
            fields["chain_id"] = jobs[0].id
        last = {"output": 57} if type_name == STEPS[-1] else {}
        jobs.append(job(type_name, minutes - index / 60, **fields, **ended(minutes - index / 60, 0.4), **last))
    return jobs


def failed(minutes):
    key = {"deduplication_key": f"order {next(numbers)}", "context": {"actor": "ada", "tenant": "tin-kettle"}}
    end = {"status": "failed", "attempt": 3, "lease_number": 3, "last_error": ERROR}
    times = {"last_attempt_at": ago(minutes - 27 / 60), "finished_at": ago(minutes - 28.2 / 60)}
    return job("shop.charge", minutes, **key, **end, **times)


def after_failure(of):
    """Create the chain that ``on_failure`` started for a failed job."""
    given = {"chain_id": str(of.chain_id), "job_id": str(of.id), "type_name": of.type_name, "attempt": of.attempt}
    input_ = {**given, "error": of.last_error, "input": of.input}
    return job("shop.mark_unpaid", 2, failed_job_id=of.id, input=input_, **ended(2, 0.1), output={})


def attempts_of(of):
    for attempt in range(1, of.attempt + 1):
        start = of.created_at + timedelta(seconds=9 * attempt)
        times = {"started_at": start, "finished_at": start + timedelta(seconds=1.2)}
        texts = {"kind": "error", "error": ERROR, "traceback": TRACEBACK, "worker": "tea-1:4012"}
        yield FailedAttempt(job=of, attempt=attempt, lease_number=attempt, **texts, **times)


def running(type_name, minutes, **fields):
    lease = {"leased_by": "tea-2:5120", "leased_until": NOW + timedelta(days=1), "last_attempt_at": ago(minutes)}
    return job(type_name, minutes, status="running", attempt=1, lease_number=1, **lease, **fields)


def notes_of(of):
    said = {"job": of, "lease_number": 1, "attempt": 1}
    yield JobProgress(**said, fraction=0.62, text="line 62 of 100", logged_at=NOW)
    for position, (level, text) in enumerate(((20, "100 lines are read"), (30, "line 41 has no price"))):
        yield LogLine(**said, position=position, logged_at=NOW, level=level, text=text, fields={"list": 12})


def lines_from(start):
    return {"price_list_id": 12, "start": start, "stop": start + 25}


def an_import(minutes):
    """Create the import of a price list: the last part runs, the one before it failed, the summary waits for all."""
    first = job("shop.import_prices", minutes, queue="imports", input={"price_list_id": 12}, **ended(minutes, 0.8))
    parts = [
        job(
            "shop.import_part", minutes, queue="imports", input=lines_from(at), output=25, **ended(minutes, 2 + at / 50)
        )
        for at in (0, 25, 50)
    ]
    error = {"last_error": "line 91: 'sencha;cheap'", "finished_at": ago(minutes - 1), "attempt": 1, "lease_number": 1}
    parts.append(job("shop.import_part", minutes, queue="imports", input=lines_from(75), status="failed", **error))
    parts.append(running("shop.import_part", minutes, queue="imports", input=lines_from(100)))
    step = {"chain_id": first.id, "chain_index": 1, "chain_type_name": first.type_name, "queue": "imports"}
    waits = {"status": "blocked", "on_blocker_failure": "run", "input": first.input}
    return [first, *parts, job("shop.sum_up_prices", minutes, **step, **waits)]


def attempt_counts():
    for span, number, share in ((60, 60, 1 / 60), (3600, 168, 1.0)):
        start = NOW.replace(second=0, microsecond=0, **({"minute": 0} if span == 3600 else {}))
        for back in range(number):
            at = start - timedelta(seconds=span * back)
            of_queues = Counter()
            for name, completed, of_failed, mean, longest in TYPES:
                amount = round(completed * share * chance.uniform(0.6, 1.3))
                bad = round(of_failed * share * chance.uniform(0, 9))
                sums = {"seconds": mean * (amount + bad), "longest_seconds": longest, "jobs_failed": bad // 9}
                yield AttemptCount(span=span, starts_at=at, type_name=name, completed=amount, failed=bad, **sums)
                of_queues["imports" if "import" in name else "orders"] += amount
            for queue, amount in of_queues.items() if span == 3600 else ():
                sums = {
                    "seconds": amount,
                    "longest_seconds": 20.0,
                    "failed": amount // 50,
                    "jobs_failed": amount // 200,
                }
                yield AttemptCount(span=span, starts_at=at, queue=queue, completed=amount, **sums)


def workers():
    names = [*(name for name, *_ in TYPES), "shop.supplier_import"]
    for number, busy, stuck in ((1, 3, 0), (2, 4, 1)):
        worker = {"pid": 4012, "version": "0.1.0", "slots": 4, "busy": busy, "stuck": stuck, "is_stopping": False}
        times = {"started_at": ago(190), "heartbeat_at": NOW + timedelta(hours=1), "heartbeat_seconds": 10.0}
        name = {"id": f"tea-{number}:4012", "host": f"tea-{number}", "queues": None, "type_names": names}
        yield WorkerPresence(**name, **worker, **times, schedules="v1")


def schedules():
    """Create a schedule in each state."""
    nightly = {"cron": "0 3 * * *", "timezone": "Europe/Berlin", "overlap": "skip"}
    often = {"every_seconds": 300.0, "timezone": "UTC", "overlap": "allow"}
    error = "JobTypeNotFound: No job type 'shop.check_prices'."
    kinds = [
        {"name": "sales-report", "type_name": "shop.report_sales", "source": "code", "declarations": "v1", **nightly},
        {"name": "import-prices", "type_name": "shop.import_prices", "source": "admin", **often},
        {
            "name": "old-sales-report",
            "type_name": "shop.report_sales",
            "source": "code",
            "declarations": "v0",
            **nightly,
        },
        {"name": "price-check", "type_name": "shop.check_prices", "source": "admin", **often, "last_error": error},
        {
            "name": "import-old-prices",
            "type_name": "shop.import_prices",
            "source": "admin",
            **nightly,
            "paused_at": ago(90),
        },
    ]
    for kind in kinds:
        usual = {"on_missed": "run_once", "max_catch_up": 100, "anchor_at": ago(4000), "created_at": ago(4000)}
        times = {"next_tick_at": NEXT_NIGHT if "cron" in kind else NOW + timedelta(minutes=2)}
        if "last_error" in kind:
            times = {"next_tick_at": ago(12), "last_error_at": ago(11.9)}
        input_ = None if kind["type_name"] == "shop.report_sales" else {"price_list_id": 12}
        yield Schedule(input=input_, **usual, **times, **kind)


def reports():
    """Create the chains of the nightly report, of which the last one failed."""
    for night in (4, 3, 2, 1):
        tick = NEXT_NIGHT - timedelta(days=night)
        minutes = (NOW - tick).total_seconds() / 60
        of = {"schedule_name": "sales-report", "scheduled_for": tick, "input": None}
        end = (
            {**ended(minutes, 38), "output": 57}
            if night > 1
            else {**ended(minutes, 2), "status": "failed", "last_error": ERROR}
        )
        yield job("shop.report_sales", minutes, queue="reports", **of, **end)


def an_approval(minutes):
    waiting = job("shop.approval", minutes)
    product = Product.objects.get(slug="kettle")
    values = {"quantity": 20, "unit_price": product.price, "email": "ada@tin-kettle.example"}
    order = Order(product=product, chain_id=waiting.chain_id, state=Order.State.AWAITING_APPROVAL, **values)
    order.save()
    waiting.input = {"order_id": order.pk}
    return [waiting]


def a_letter(minutes):
    return [job("shop.send_letter", minutes, queue="letters")]


def a_failure(minutes):
    return [failed(minutes)]


def in_their_order():
    """Create chains in the order of time, because ids contain the time."""
    plan = [(minutes, order) for minutes in range(1, 60)]
    plan += [(minutes + 0.4, a_letter) for minutes in range(3, 40, 3)]
    plan += [(minutes + 0.6, a_failure) for minutes in (2, 4, 5, 11, 17)]
    plan += [(0.5, an_approval), (8.5, an_approval), (12.5, an_import)]
    return [make(minutes) for minutes, make in sorted(plan, key=lambda step: -step[0])]


def supplier_imports():
    """Create a file in each state, and return the one that failed."""
    start = ago(4).isoformat()
    read = {"key": "read", "command": ["read", "june.csv"], "exit_code": 0, "out": "12 lines", "duration_ms": 40}
    check = {"key": "check", "command": ["check", "june.csv"], "exit_code": 3, "out": "line 7: spoon;1"}
    logs = [{**read, "start_time": start}, {**check, "start_time": start, "duration_ms": 2300}]
    times = {"started_at": ago(4), "finished_at": ago(3.9), "worker_hostname": "tea-1", "lease_number": 2}
    kinds = [
        {"state": "completed", "added": 120, **times},
        {"state": "queued"},
        {"state": "queued", "process_after": ago(-30)},
        {"state": "processing", "started_at": ago(1), "last_heartbeat_at": NOW, "worker_hostname": "tea-2"},
        {"state": "errored", "num_failures": 1, "failure_message": ERROR, **times},
        {"state": "cancelled", "finished_at": ago(2)},
    ]
    for number, kind in enumerate(kinds):
        values = {"file_name": f"delivery-{number}.csv", "content": "cup;1", "lines": 1, "queued_at": ago(9 - number)}
        SupplierImport.objects.create(**values, **kind)
    failure = {
        "num_failures": 2,
        "num_resets": 1,
        "failure_message": "NonRetryable: Line 7: there is no product 'spoon'.",
    }
    values = {"file_name": "june.csv", "content": "cup;1", "lines": 12, "queued_at": ago(5), "execution_logs": logs}
    return SupplierImport.objects.create(state="failed", **values, **failure, **times)


with transaction.atomic():
    record = supplier_imports()
    later = {"run_at": NOW + timedelta(hours=6), "input": {"product_id": 3}, "queue": "stock"}
    scheduled = job("shop.check_stock", 70, **later)
    nightly = list(reports())
    Schedule.objects.bulk_create(schedules())
    Schedule.objects.filter(pk="sales-report").update(
        last_chain_id=nightly[-1].id, last_tick_at=nightly[-1].scheduled_for
    )
    chains = in_their_order()
    imported = next(chain for chain in chains if chain[0].type_name == "shop.import_prices")
    part = imported[-2]
    Job.objects.bulk_create([*nightly, scheduled, *(step for chain in chains for step in chain)])
    failures = [chain[0] for chain in chains if chain[0].status == "failed"]
    reaction = after_failure(failures[-1])
    Job.objects.bulk_create([reaction])
    FailedAttempt.objects.bulk_create(attempt for of in failures for attempt in attempts_of(of))
    for note in notes_of(part):
        note.save(force_insert=True)
    for position, blocker in enumerate(imported[1:-1]):
        is_open = blocker.status == "running"
        JobBlocker.objects.create(job=imported[-1], position=position, blocker=blocker, is_open=is_open)
    AttemptCount.objects.bulk_create(attempt_counts())
    WorkerPresence.objects.bulk_create(workers())
    queues.pause("letters")
shown = {"failed": failures[-1], "import": imported[0], "part": part, "order": chains[0][0], "scheduled": scheduled}
shown["approval"] = next(chain[0] for chain in chains if chain[0].type_name == "shop.approval")
shown |= {"report": nightly[-1], "reaction": reaction}
answer({name: str(row.pk) for name, row in {**shown, "record": record}.items()})
