"""A process that orders, as web processes do, and acts like people who cancel, mend and retry.

    python -m tests.soak.load SECONDS RATE [people]

Each request writes business rows and enqueues chains in one transaction, and is written to the journal when the
database has confirmed the commit. A request that gets an error is not repeated, so what it wrote may be there or not.
"""

import os
import random
import sys
import threading
import time
from collections import Counter
from itertools import count

import django
from django.db import DatabaseError, InterfaceError, connection, transaction

if __name__ == "__main__":
    django.setup()

from django_jobchains import Deduplicate, chains, limits, records
from django_jobchains.models import Job
from tests.soak import jobs, journal
from tests.soak.models import Letter, Order, Parcel

THREADS = 3
KEYS = "abcd"
#: No request is made while more jobs wait.
MAX_BACKLOG = 4_000
#: So many wait for each key of a rate, so that the rate is what they wait for.
WAITING_FOR_RATE = 12
#: What people set limits to, again and again: the name, or None for the queue, what is limited, and the numbers.
CHANGES = (
    ("soak.by_type", "concurrency", (2, 3)),
    (None, "concurrency", (3, 5)),
    ("soak.rated", "rate", (3, 5)),
    ("soak.rated_by_key", "rate", (3, 5)),
    ("soak.post", "rate", (6, 10)),
)
LATER = 3_600


def several(kind, job_type, number, keys=KEYS):
    """Order several chains at once."""
    orders = [Order(kind=kind) for _ in range(number)]
    started = chains.enqueue_many(
        [job_type.item({"order": str(order.id), "key": random.choice(keys)}) for order in orders]
    )
    for order, chain in zip(orders, started, strict=True):
        order.chain_id = chain.id
    return Order.objects.bulk_create(orders)


def single(kind, job_type, **options):
    order = Order(kind=kind)
    order.chain_id = job_type.enqueue({"order": str(order.id), "key": random.choice(KEYS)}, **options).id
    order.save(force_insert=True)
    return [order]


def fan_in(cycle):
    order = Order(kind="fan_in")
    parts = chains.enqueue_many([jobs.part.item({"order": str(order.id)}) for _ in range(3)])
    order.chain_id = jobs.gather.enqueue({"order": str(order.id)}, blockers=parts).id
    order.save(force_insert=True)
    return [order]


def once(cycle):
    """Use the same key as the others of this cycle, at about the same time. Only the first one writes an order."""
    order = Order(kind="once", key=f"{os.getpid()} {cycle}")
    chain = jobs.plain.enqueue({"order": str(order.id)}, deduplicate=Deduplicate(order.key, scope="any"))
    order.chain_id = chain.id
    if not chain.deduplicated:
        order.save(force_insert=True)
    return [order]


def record(cycle):
    order = Order.objects.create(kind="record")
    Parcel.objects.create(order_id=order.id, depot=random.choice(KEYS))
    records.notify(Parcel)
    return [order]


def letters(number):
    orders = Order.objects.bulk_create([Order(kind="letter") for _ in range(number)])
    Letter.objects.bulk_create([Letter(order_id=order.id) for order in orders])
    records.notify(Letter)
    return orders


REQUESTS = (
    lambda cycle: several("plain", jobs.plain, 15),
    fan_in,
    once,
    lambda cycle: single("branch", jobs.branch),
    lambda cycle: several("by_key", jobs.by_key, 3),
    lambda cycle: several("by_type", jobs.by_type, 3),
    lambda cycle: single("isolated", jobs.isolated),
    once,
    lambda cycle: several("batched", jobs.batched, 100),
    lambda cycle: several("of_group", jobs.of_group, 2),
    lambda cycle: single("undecided", jobs.long),
    lambda cycle: several("narrow", jobs.narrow, 3),
    lambda cycle: several("awaited", jobs.awaited, 4),
    once,
    lambda cycle: single("returned", jobs.returned),
    lambda cycle: several("plain", jobs.plain, 15),
    lambda cycle: single("cancelled", jobs.plain, delay=LATER),
    lambda cycle: several("of_group", jobs.also_of_group, 2),
    record,
    lambda cycle: single("revived", jobs.plain, delay=LATER),
    lambda cycle: single("fails", jobs.fails),
)
#: How many chains all of them enqueue.
CHAINS_OF_ALL = 160


def place_orders(until, rate, numbers):
    """Make requests until this time, over one connection until it fails, so many chains in a second on average."""
    began, made = time.monotonic(), 0
    seconds = CHAINS_OF_ALL / len(REQUESTS) / rate
    while time.monotonic() < until:
        number = next(numbers)
        try:
            if number % 50 == 0:
                wait_for_workers(until)
            place(REQUESTS[number % len(REQUESTS)], number // len(REQUESTS))
        except (DatabaseError, InterfaceError) as error:
            report(error)
            time.sleep(0.2)
        else:
            made += 1
        behind = time.monotonic() - began - made * seconds
        time.sleep(max(0, -behind))
    connection.close()


def place(request, *arguments):
    with transaction.atomic():
        orders = request(*arguments)
    for order in orders:
        names = {"key": order.key} if order.key else {}
        journal.write("ordered", order=str(order.id), kind=order.kind, chain=str(order.chain_id), **names)


def wait_for_workers(until):
    while Job.objects.incomplete().count() > MAX_BACKLOG and time.monotonic() < until:
        time.sleep(1)


def reach_rates(is_over):
    """Let jobs and records of each key wait for their rate all the time, but never many."""
    while not is_over.wait(1):
        try:
            for job_type, keys in ((jobs.rated, "a"), (jobs.rated_by_key, KEYS), (jobs.postcard, "a")):
                waiting = Counter(job.input["key"] for job in Job.objects.incomplete().of_type(job_type.name))
                for key in keys:
                    place(several, job_type.name.removeprefix("soak."), job_type, WAITING_FOR_RATE - waiting[key], key)
            place(letters, WAITING_FOR_RATE - Letter.objects.exclude(state="completed").count())
        except (DatabaseError, InterfaceError) as error:
            report(error)
    connection.close()


def act_as_people(is_over):
    """Cancel and retry until nothing is left to do, after the last order."""
    while True:
        was_over = is_over.is_set()
        try:
            left = sum(handle(order) for order in Order.objects.filter(kind__in=PEOPLE, step__lt=2)[:200])
            for job in Job.objects.with_status("failed").of_type("soak.fails")[:100]:
                left += 1
                with transaction.atomic():
                    Order.objects.filter(pk=job.input["order"]).update(is_mended=True, step=2)
                    chains.retry(job)
            left += Job.objects.incomplete().of_type("soak.fails").count()
        except (DatabaseError, InterfaceError) as error:
            report(error)
            left = 1
        if was_over and not left:
            break
        time.sleep(0.2)
    connection.close()


PEOPLE = ("cancelled", "revived", "undecided")


def handle(order):
    """Cancel the chain of the order, and retry it when it is cancelled, unless it is to stay so. Return 1."""
    with transaction.atomic():
        if order.step == 0:
            chains.cancel(order.chain_id)
            order.step = 2 if order.kind == "cancelled" else 1
        elif (status := chains.get(order.chain_id).status) == "cancelled":
            chains.retry(order.chain_id)
            order.step = 2
        elif status == "completed":
            order.step = 2
        order.save(update_fields=["step"])
    return 1


def change_limits(is_over):
    while not is_over.wait(random.uniform(5, 15)):
        name, what, numbers = random.choice(CHANGES)
        number = random.choice(numbers)
        facts = {"name": name or f"queue {jobs.QUEUE}", "number": number}
        journal.write("limit_asked", **facts)
        while not is_over.is_set():
            try:
                limits.set(*([name] if name else []), **({} if name else {"queue": jobs.QUEUE}), **{what: number})
            except (DatabaseError, InterfaceError) as error:
                report(error)
                time.sleep(0.2)
            else:
                journal.write("limit_set", **facts)
                break
    connection.close()


def report(error):
    """Note the error, and begin with a new connection."""
    journal.write("error", error=type(error).__name__, text=str(error)[:100])
    connection.close()


def main(seconds, rate, acts_as=""):
    until, numbers, is_over = time.monotonic() + float(seconds), count(), threading.Event()
    placing = [
        threading.Thread(target=place_orders, args=(until, float(rate) / THREADS, numbers)) for _ in range(THREADS)
    ]
    people = [threading.Thread(target=act, args=(is_over,)) for act in (act_as_people, change_limits, reach_rates)]
    threads = placing + (people if acts_as == "people" else [])
    for thread in threads:
        thread.start()
    for thread in placing:
        thread.join()
    is_over.set()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
