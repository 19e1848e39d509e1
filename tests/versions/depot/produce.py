"""Enqueues jobs of all kinds, and promises their outputs, until there is a file ``stop``."""

import json
import time
from itertools import count
from pathlib import Path

from depot import jobs
from depot.jobs import SIDE
from depot.models import Promise, Upload
from django.db import transaction

from django_jobchains import chains
from django_jobchains.chains import Deduplicate
from django_jobchains.models import Job

#: More jobs are enqueued when fewer than this wait for the workers of this side.
MAX_WAITING = 100


def promise(output, *promised):
    for chain in promised:
        Promise.objects.create(chain_id=chain.id, output=json.dumps(output))


def produce():
    for number in count():
        with transaction.atomic():
            enqueue(number)
        time.sleep(0.05)
        waiting = Job.objects.filter(status="pending", queue__in=[SIDE, "default"])
        while waiting.count() > MAX_WAITING and not Path("stop").exists():
            time.sleep(0.05)
        if Path("stop").exists():
            return


def enqueue(number):
    promise("arrived", jobs.pass_on.enqueue(5, queue="old"), jobs.pass_on.enqueue(5, queue="new"))
    parts = chains.enqueue_many([jobs.part.item(1), jobs.part.item(2, queue="old"), jobs.part.item(3, queue="new")])
    promise(6, jobs.total.enqueue(blockers=parts))
    promise(None, *chains.enqueue_many([jobs.batch.item() for _ in range(3)]))
    promise(None, jobs.stumble.enqueue(), jobs.alone.enqueue())
    # Both sides enqueue the same keys.
    promise(None, jobs.once.enqueue(str(number), deduplicate=Deduplicate(str(number), "any")))
    jobs.breaks.enqueue()
    Upload.objects.create()
