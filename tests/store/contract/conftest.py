"""Models of records: one with the package's columns, and one with other column names and text keys."""

from itertools import count

import pytest
from django.db import connection
from django.db.backends.signals import connection_created

from django_jobchains.processors import Processors
from tests.records.models import LETTER_COLUMNS, Letter, Upload
from tests.store.contract.records import Limited, RecordModel

_numbers = count()


def _make_letter():
    return Letter.objects.create(code=f'it\'s {{1}} %s, "{next(_numbers)}"')


#: The model, the options of its registration, how a record is created, and the isolation level.
_MODELS = (
    pytest.param((Upload, {}, Upload.objects.create, ""), id="uploads"),
    pytest.param(
        (Letter, {"columns": LETTER_COLUMNS, "order_by": ["created", "code"]}, _make_letter, ""), id="letters"
    ),
    *(
        pytest.param((Upload, {}, Upload.objects.create, level), id=level, marks=pytest.mark.postgresql)
        for level in ("repeatable read", "serializable")
    ),
)


@pytest.fixture(scope="module", params=_MODELS)
def _described(request, django_db_setup, django_db_blocker):
    """Let all connections use the isolation level."""
    *described, level = request.param
    if not level:
        yield described
        return

    def set_level(connection, **kwargs):
        with connection.cursor() as cursor:
            cursor.execute(f"SET default_transaction_isolation TO '{level}'")

    with django_db_blocker.unblock():
        connection.close()
    connection_created.connect(set_level)
    yield described
    connection_created.disconnect(set_level)
    with django_db_blocker.unblock():
        assert connection.get_database_version()
        connection.close()


@pytest.fixture
def model(_described, store, registry):
    """A registered model of records."""
    model_class, options, make = _described
    registry.add(processors := Processors())
    processors.records(model_class, **options)(lambda record, run: None)
    [kind] = processors.record_types.values()
    return RecordModel(kind, store, make)


@pytest.fixture
def limited(store, registry):
    def limited(model=Upload, **options):
        return Limited(store, registry, model, options)

    return limited
