"""The recipe for rows with values of other tables: annotations, and a database view that is joined to the table."""

import pytest
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_jobchains.monitoring import record_overview
from django_jobchains.records.checks import check_records
from tests.records.models import Repository, Upload

pytestmark = pytest.mark.django_db(transaction=True)


VIEW = """
    CREATE VIEW records_uploaddetails AS
    SELECT upload.id, repository.name AS repository_name, repository.priority,
        (SELECT count(*) FROM records_upload AS other WHERE other.repository_id = repository.id) AS uploads
    FROM records_upload AS upload JOIN records_repository AS repository ON repository.id = upload.repository_id
"""


@pytest.fixture
def _view(transactional_db):
    with connection.cursor() as cursor:
        cursor.execute(VIEW)
        yield
        cursor.execute("DROP VIEW records_uploaddetails")


@pytest.mark.usefixtures("_view")
def test_a_view_is_joined_to_the_table(register, make_worker):
    """The dequeue writes the row of the table, and the handler reads the view without another query."""
    slow, fast = (Repository.objects.create(name=name, priority=rank) for name, rank in (("slow", 5), ("fast", 1)))
    for repository in (slow, fast, fast):
        Upload.objects.create(repository=repository)
    seen = []

    def handle(record, run):
        with CaptureQueriesContext(connection) as queries:
            seen.append((record.repository_name, record.details.repository_name, record.details.uploads))
        assert len(queries) == 0
        with run.complete():
            record.result = "read"
            record.save()

    uploads = Upload.objects.annotate(repository_name=F("repository__name")).select_related("details")
    register(handle, queryset=uploads.filter(details__priority__lt=5), order_by=["details__priority"])
    assert check_records() == []
    assert [facts.due for facts in record_overview()] == [2]
    make_worker(slots=1).run_until_idle(timeout=20)
    assert seen == [("fast", "fast", 2)] * 2
    assert sorted(Upload.objects.values_list("state", "result")) == [("completed", "read")] * 2 + [("queued", "")]
