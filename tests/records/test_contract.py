"""The contract of record models: one with our columns and numeric keys, one with other column names and text keys."""

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from django.db import connection
from django.db.backends.signals import connection_created

from django_jobchains.processors import Processors
from django_jobchains.records.declarations import RecordType
from django_jobchains.store import Store
from tests.records.models import LETTER_COLUMNS, Letter, Upload
from tests.store.contract.test_record_logs import RecordLogTests
from tests.store.contract.test_record_races import RecordRaceTests
from tests.store.contract.test_records import RecordMoveTests

numbers = count()


class Registered(RecordMoveTests, RecordLogTests, RecordRaceTests):
    options: dict[str, Any] = {}
    model: Any

    @pytest.fixture
    def kind(self, processors: Processors) -> RecordType:
        processors.records(self.model, **self.options)(lambda record, run: None)
        [kind] = processors.record_types.values()
        return kind


class TestUploads(Registered):
    model = Upload

    def make(self) -> Upload:
        return Upload.objects.create()


class TestLetters(Registered):
    model = Letter
    options = {"columns": LETTER_COLUMNS, "order_by": ["created", "code"]}

    def make(self) -> Letter:
        return Letter.objects.create(code=f'it\'s {{1}}, "{next(numbers)}"')


@pytest.fixture(scope="class")
def isolated(request: pytest.FixtureRequest, django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Let all connections use the isolation level of the test class."""

    def set_level(connection: Any, **kwargs: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET default_transaction_isolation TO '{request.cls.level}'")

    with django_db_blocker.unblock():
        connection.close()
    connection_created.connect(set_level)
    yield
    connection_created.disconnect(set_level)
    with django_db_blocker.unblock():
        connection.close()


@pytest.mark.postgresql
@pytest.mark.usefixtures("isolated")
class AtHigherLevel(TestUploads):
    __test__ = False
    level: str

    def test_the_level_is_set(self, store: Store) -> None:
        assert store.db.fetch("SELECT current_setting('transaction_isolation')", []) == [(self.level,)]


class TestUploadsAtRepeatableRead(AtHigherLevel):
    __test__ = True
    level = "repeatable read"


class TestUploadsAtSerializable(AtHigherLevel):
    __test__ = True
    level = "serializable"
