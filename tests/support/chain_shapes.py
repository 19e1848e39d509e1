"""Create chains in each state with public calls, and many rows at once with SQL."""

from datetime import UTC, datetime, timedelta

from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_jobchains import chains
from django_jobchains.db.ids import new_id
from django_jobchains.models import Job
from django_jobchains.processors import JobType
from django_jobchains.store import get_store
from tests.support.jobs import claim, failed_try

pack = JobType("shop.pack")
ship = JobType("shop.ship")
mail = JobType("shop.mail")
DECLARED = (pack, ship, mail)
MORNING = datetime(2024, 5, 1, 6, 30, 0, 123456, tzinfo=UTC)


def pending():
    return pack.enqueue({"order": 1})


def running():
    chain = pack.enqueue({"order": 2})
    claim_all()
    return chain


def completed():
    chain = pack.enqueue({"order": 3})
    chains.complete(chain.id, {"weight": 2.5})
    return chain


def continued():
    """The first job is completed, the second one is pending."""
    chain = pack.enqueue({"order": 4})
    with chains.current_job(chain.id) as current:
        current.continue_with(ship, {"parcel": 40})
    return chain


def completed_in_three_steps(using=None):
    chain = pack.enqueue({"order": 5}, using=using)
    with chains.current_job(chain.id, using=using) as current:
        current.continue_with(ship, {"parcel": 50})
        current.continue_with(mail, {"to": "you"})
        current.finish(["sent"])
    return chain


def completed_without_output():
    chain = pack.enqueue({"order": 6})
    chains.complete(chain.id, None)
    return chain


def failed():
    """The second job has failed."""
    chain = continued()
    get_store().attempts.fail([failed_try(job, error="no stamps") for job in claim_all()])
    return chain


def cancelled():
    chain = continued()
    chains.cancel(chain.id)
    return chain


def blocked():
    """The second job waits for a pending chain."""
    blocker = mail.enqueue()
    chain = pack.enqueue({"order": 7})
    with chains.current_job(chain.id) as current:
        current.continue_with(ship, {"parcel": 70}, blockers=[blocker])
    return chain


#: Functions that claim due jobs come first.
SHAPES = {
    make.__name__: make
    for make in (
        running,
        failed,
        pending,
        completed,
        continued,
        completed_in_three_steps,
        completed_without_output,
        cancelled,
        blocked,
    )
}


def claim_all():
    return claim(get_store(), types=[job_type.name for job_type in DECLARED])


def rows(count, ids=None, created_at=MORNING, **values):
    """Create chains of one job with SQL, and return their ids in the order of creation."""
    ids = ids or [new_id() for _ in range(count)]
    if values.get("status") == "completed":
        values.setdefault("output", {})
    Job.objects.bulk_create(row(id_, created_at=created_at, **values) for id_ in ids)
    return list(ids)


def row(id_, chain_id=None, step=0, **values):
    base = {"chain_type_name": "shop.pack", "type_name": "shop.pack", "queue": "default"}
    base |= {"status": "pending", "run_at": MORNING, "created_at": MORNING}
    return Job(id=id_, chain_id=chain_id or id_, chain_index=step, **(base | values))


def steps(count, **last):
    """Create a chain whose jobs are completed except the last, and return its id. ``last``: columns of the last job."""
    ids = [new_id() for _ in range(count)]
    done = {"status": "completed", "finished_at": MORNING}
    jobs = [row(id_, ids[0], step, **done) for step, id_ in enumerate(ids[:-1])]
    Job.objects.bulk_create([*jobs, row(ids[-1], ids[0], count - 1, **last)])
    return ids[0]


def later(seconds):
    return MORNING + timedelta(seconds=seconds)


def pages(queryset, limit):
    """Yield the pages of a list."""
    cursor = None
    while True:
        page = queryset.page(cursor, limit)
        yield list(page)
        assert page.next_cursor is None or page.next_cursor != cursor, "The next page has the same cursor."
        cursor = page.next_cursor
        if cursor is None:
            return


def all_of(queryset, limit=7):
    return [item for page in pages(queryset, limit) for item in page]


def statements(call):
    with CaptureQueriesContext(connection) as queries:
        call()
    return [query["sql"] for query in queries]
