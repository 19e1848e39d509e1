"""The recipes for rows with values of other tables: annotations, and a database view that is joined to the table."""

import pytest
from django.db import connection
from django.db.models import Count, F, OuterRef, Subquery
from django.test.utils import CaptureQueriesContext

from django_jobchains.monitoring import record_overview
from django_jobchains.records.checks import check_records
from tests.records.models import Repository, Upload
from tests.support.waiting import until

pytestmark = pytest.mark.django_db(transaction=True)


VIEW = """
    CREATE VIEW records_uploaddetails AS
    SELECT upload.id, repository.name AS repository_name, repository.priority,
        (SELECT count(*) FROM records_upload AS other WHERE other.repository_id = repository.id) AS uploads
    FROM records_upload AS upload JOIN records_repository AS repository ON repository.id = upload.repository_id
"""


@pytest.fixture
def run(processors, start_worker):
    """Let a worker run the uploads of a queryset; return what the handler read from each, in the order of the calls."""

    def run(queryset, read, count, **options):
        seen = []

        @processors.records(Upload, queryset=queryset, poll_every=0.02, slots=1, **options)
        def handle(record, run):
            seen.append(read(record))
            with run.complete():
                record.result = "read"
                record.save()

        assert check_records() == []
        [facts] = record_overview()
        assert facts.due == count
        start_worker()
        until(lambda: Upload.objects.filter(state="completed", result="read").count() == count)
        return seen

    return run


@pytest.fixture
def repositories(transactional_db):
    made = [Repository.objects.create(name=name, priority=priority) for name, priority in (("slow", 5), ("fast", 1))]
    for repository in (made[0], made[1], made[1]):
        Upload.objects.create(repository=repository)
    return made


@pytest.mark.usefixtures("repositories")
def test_annotations_carry_values_of_other_tables(run):
    uploads = Upload.objects.filter(repository=OuterRef("repository")).order_by().values("repository")
    queryset = Upload.objects.annotate(
        repository_name=F("repository__name"),
        uploads=Subquery(uploads.annotate(count=Count("pk")).values("count")),
    )
    seen = run(queryset, lambda record: (record.repository_name, record.uploads), 3, order_by=["repository__priority"])
    assert seen == [("fast", 2), ("fast", 2), ("slow", 1)]


@pytest.fixture
def _view(repositories):
    with connection.cursor() as cursor:
        cursor.execute(VIEW)
        yield
        cursor.execute("DROP VIEW records_uploaddetails")


@pytest.mark.usefixtures("_view")
def test_view_is_joined_to_the_table(run):
    """The dequeue writes the row of the table, and the handler reads the view without another query."""

    def read(record):
        with CaptureQueriesContext(connection) as queries:
            found = (record.details.repository_name, record.details.uploads)
        return *found, len(queries)

    queryset = Upload.objects.select_related("details").filter(details__priority__lt=5)
    assert run(queryset, read, 2, order_by=["details__priority"]) == [("fast", 2, 0), ("fast", 2, 0)]
    assert Upload.objects.filter(state="queued").count() == 1
