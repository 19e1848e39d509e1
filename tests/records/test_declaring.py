"""Registering record workers, the system checks about them, and the migrations of their models."""

from datetime import timedelta
from functools import partial

import pytest
from django.db import connection, models
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.state import ModelState, ProjectState
from django.db.models import Q
from django.forms import fields_for_model
from django.test.utils import isolate_apps

from django_jobchains.cli.types import record_json
from django_jobchains.exceptions import DuplicateJobType, InvalidDeclaration, RegistryError
from django_jobchains.processors import Processors
from django_jobchains.records import (
    JobRecord,
    RecordProcessor,
    RecordTypeNotFound,
    queryset,
)
from django_jobchains.records.checks import check_records
from tests.records.models import LETTER_COLUMNS, Export, Letter, Upload

pytestmark = pytest.mark.django_db


def nothing(record, run):
    """A handler."""


def test_the_name_defaults_to_that_of_the_model(processors):
    assert processors.records(Upload)(nothing) is nothing
    processors.records(Export, "exports")(nothing)
    assert list(processors.record_types) == ["records.upload", "exports"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"slots": 0}, "slots=0 is not a whole number from 1"),
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"max_resets": -1}, "max_resets=-1 is not a whole number from 0"),
        ({"stalled_after": 0}, "stalled_after=0"),
        ({"heartbeat_every": timedelta()}, "heartbeat_every="),
        ({"retry_after": -1}, "retry_after=-1"),
        ({"max_runtime": "1"}, "max_runtime='1' is not a duration"),
        ({"poll_every": 0}, "poll_every=0"),
        ({"cancel_every": -1}, "cancel_every=-1"),
        ({"cancel_every": "often"}, "cancel_every='often'"),
        ({"queue": ""}, "'' is not a name"),
        ({"columns": {"status": "state"}}, "unknown keys status"),
        ({"columns": ["state"]}, "is not a dict"),
        ({"order_by": "id"}, "order_by='id' is not a list"),
        ({"queryset": Export.objects.all()}, "queryset= is a QuerySet of Export, not of Upload."),
        ({"queryset": Upload.objects}, "queryset= is a manager, not a QuerySet: pass Upload.objects.all()."),
        ({"queryset": Upload}, "is not a QuerySet of Upload"),
        ({"queryset": Upload.objects.all()[:5]}, "must select rows of the table"),
        ({"queryset": Upload.objects.distinct()}, "must select rows of the table"),
        ({"queryset": Upload.objects.values("size").annotate(models.Count("id"))}, "must select rows of the table"),
        ({"queryset": Upload.objects.select_for_update()}, "must leave locks and the order to the worker"),
        ({"queryset": Upload.objects.order_by("id").reverse()}, "must leave locks and the order to the worker"),
        ({"queryset": Upload.objects.filter(repository__upload__size=1)}, "use Exists(…) instead"),
        ({"queryset": Upload.objects.annotate(other=models.F("repository__upload__size"))}, "use Exists(…) instead"),
        ({"queryset": Upload.objects.filter(repository__upload__isnull=True)}, "~Exists(…) instead of isnull=True"),
        ({"isolation": "container"}, "isolation='container' is not a level"),
        ({"reset_failure_message": ""}, "reset_failure_message='' is not a text"),
    ],
)
def test_an_invalid_option_is_refused_at_registration(processors, options, problem):
    with pytest.raises(InvalidDeclaration, match=r"'records\.upload'") as raised:
        processors.records(Upload, **options)(nothing)
    assert problem in str(raised.value)


def test_records_are_queried_at_least_once_a_second_by_default(processors):
    processors.records(Upload)(nothing)
    processors.records(Export, poll_every=5)(nothing)
    upload, export = processors.record_types.values()
    assert (upload.poll_seconds(60), upload.poll_seconds(0.2), export.poll_seconds(60)) == (1, 0.2, 5)


def test_unknown_options_are_refused(processors):
    options = {"lease": 5}
    with pytest.raises(TypeError, match=r"records\(\) does not take the argument lease"):
        processors.records(Upload, **options)(nothing)


class WithArguments(RecordProcessor[Upload]):
    def __init__(self, size): ...

    def handle(self, record, run): ...


class WithAsyncHook(RecordProcessor[Upload]):
    async def handle(self, record, run): ...

    async def pre_handle(self, record): ...


async def with_yield(record, run):
    yield


@pytest.mark.parametrize(
    ("handler", "problem"),
    [
        (type("WithoutHandle", (RecordProcessor,), {}), "WithoutHandle does not define handle"),
        (WithArguments, "WithArguments must be callable without arguments"),
        (WithAsyncHook, "WithAsyncHook.pre_handle is an 'async def' function"),
        (WithAsyncHook(), "WithAsyncHook.pre_handle is an 'async def' function"),
        (partial(with_yield), "'with_yield' is a generator"),
        (type("Short", (RecordProcessor,), {"handle": lambda self, record: None}), r"must take \(record, run\)"),
        (partial(lambda option: None), r"must take \(record, run\)"),
        (Upload, "is not a subclass of RecordProcessor"),
        ("a text", "is neither a RecordProcessor nor a function"),
    ],
)
def test_an_invalid_handler_is_refused_at_registration(processors, handler, problem):
    with pytest.raises(InvalidDeclaration, match=problem):
        processors.records(Upload)(handler)


labels = []


class Labelled(RecordProcessor[Upload]):
    """Has an argument, and a hook."""

    def __init__(self, label):
        self.label = label

    def pre_handle(self, record):
        self.label += "!"

    async def handle(self, record, run):
        labels.append(self.label)


class Called:
    async def __call__(self, record, run, label="called"):
        labels.append(label)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("handler", "label", "name"),
    [
        (Labelled("instance"), "instance!", "Labelled"),
        (Called(), "called", "Called.__call__"),
        (partial(Called(), label="partial"), "partial", "Called.__call__"),
        (Labelled("method").handle, "method", "Labelled.handle"),
    ],
    ids=["instance", "object", "partial", "method"],
)
def test_a_handler_may_be_an_instance_a_partial_or_a_method(processors, handled, handler, label, name):
    labels.clear()
    upload = handled(handler)
    assert (upload.state, labels) == ("completed", [label])
    (kind,) = processors.record_types.values()
    assert record_json(kind)["handler"] == f"{__name__}.{name}"


@pytest.mark.parametrize("model", [JobRecord, "records.Upload", WithArguments])
def test_only_models_with_a_table_are_registered(processors, model):
    with pytest.raises(RegistryError):
        processors.records(model)


def test_names_are_unique_among_job_types_and_records(processors, registry):
    with pytest.raises(RegistryError, match="is not a name"):
        processors.records(Upload, "")
    processors.records(Upload, "shop.a")(nothing)
    with pytest.raises(
        DuplicateJobType, match=r": by tests\.records\.test_declaring\.nothing and by .*Handles\.handle\."
    ):

        @processors.records(Export, "shop.a")
        class Handles(RecordProcessor[Export]):
            def handle(self, record, run): ...

    with pytest.raises(DuplicateJobType):
        processors.register("shop.a")(lambda job: None)
    other = Processors()
    other.register("shop.a")(lambda job: None)
    with pytest.raises(DuplicateJobType):
        registry.add(other)


def test_a_model_without_a_registration_has_no_queryset(processors):
    with pytest.raises(RecordTypeNotFound, match="No app handles records of Upload"):
        queryset(Upload)


# Checks


def test_models_that_inherit_the_columns_pass_the_checks(processors):
    processors.records(Upload, retry_after=5, max_attempts=3, stalled_after=30, heartbeat_every=10)(nothing)
    processors.records(Export)(nothing)
    processors.records(Letter, columns=LETTER_COLUMNS)(nothing)
    assert check_records() == []


@pytest.mark.parametrize(
    ("model", "options", "id"),
    [
        (Letter, {"columns": {**LETTER_COLUMNS, "cancel": "stopp"}}, "jobchains.E013"),
        (Letter, {"columns": {**LETTER_COLUMNS, "started_at": "created"}}, "jobchains.E014"),
        (Upload, {"order_by": ["rank"]}, "jobchains.E015"),
        (Letter, {"columns": {**LETTER_COLUMNS, "process_after": "ended"}}, "jobchains.W007"),
        (Upload, {"stalled_after": 29, "heartbeat_every": 10}, "jobchains.E016"),
        (Upload, {"max_attempts": 3}, "jobchains.W008"),
        (Letter, {"columns": LETTER_COLUMNS, "reset_failure_message": 256 * "x"}, "jobchains.E018"),
    ],
)
def test_each_problem_has_a_check(processors, model, options, id):
    processors.records(model, **options)(nothing)
    [problem] = check_records()
    assert (problem.id, bool(problem.hint), problem.msg.startswith("Records '")) == (id, True, True)


def test_a_form_has_no_column_that_workers_write():
    assert list(fields_for_model(JobRecord)) == ["process_after"]


@isolate_apps("tests.records")
def test_indexes_are_missing_without_the_meta_class(processors):
    class Forgetful(JobRecord):
        class Meta:
            app_label = "records"
            ordering = ["id"]

    processors.records(Forgetful)(nothing)
    [problem] = check_records()
    assert problem.id == "jobchains.W007"
    assert "JobRecord.Meta" in (problem.hint or "")


QUEUED, FINISHED = ["state", "process_after"], ["state", "finished_at"]


@isolate_apps("tests.records")
@pytest.mark.parametrize(
    ("fields", "condition", "retry_after", "covers"),
    [
        (QUEUED, None, None, True),
        (QUEUED, Q(state__in=["queued", "errored"]), None, True),
        (QUEUED, Q(state="failed") | Q(state="queued"), None, True),
        (QUEUED, ~Q(state="completed"), None, True),
        (QUEUED, ~Q(state="queued"), None, False),
        (QUEUED, Q(state="errored"), None, False),
        (QUEUED, Q(state="queued", cancel=False), None, False),
        (QUEUED, Q(process_after__isnull=True), None, False),
        (["process_after", "state"], None, None, False),
        (FINISHED, None, 5, True),
        (FINISHED, Q(state="errored"), 5, True),
        (FINISHED, Q(state="failed"), 5, False),
        (["state", "started_at"], None, 5, False),
        (["state", "started_at"], None, None, True),
    ],
)
def test_an_index_covers_the_records_that_are_dequeued(processors, fields, condition, retry_after, covers):
    class Indexed(JobRecord):
        class Meta:
            app_label = "records"
            indexes = [models.Index(fields=fields, condition=condition, name="given")]
            if fields[1] in ("finished_at", "started_at"):
                indexes.append(models.Index(fields=QUEUED, name="queued"))

    processors.records(Indexed, retry_after=retry_after)(nothing)
    assert [(problem.id, bool(problem.hint)) for problem in check_records()] == (
        [] if covers else [("jobchains.W007", True)]
    )


@isolate_apps("tests.records")
def test_columns_in_the_table_of_a_parent_are_refused(processors):
    meta = type("Meta", (JobRecord.Meta,), {"app_label": "records"})
    parent = type("Parent", (JobRecord,), {"Meta": meta, "__module__": __name__})
    child = type("Child", (parent,), {"Meta": type("Meta", (), {"app_label": "records"}), "__module__": __name__})
    processors.records(child)(nothing)
    assert {problem.id for problem in check_records()} == {"jobchains.E013"}


# Migrations


@isolate_apps("tests.records")
def test_migrations_contain_plain_indexes_whose_names_are_short():
    class AModelWithANameThatIsTooLongForIndexNames(JobRecord):
        class Meta(JobRecord.Meta):
            app_label = "records"

    def project(*, as_written):
        """Return the state of the model, or with ``as_written`` the state after a migration file with its indexes."""
        state = ModelState.from_model(AModelWithANameThatIsTooLongForIndexNames)
        if as_written:
            state.options["indexes"] = [models.Index(**index.deconstruct()[2]) for index in state.options["indexes"]]
        found = ProjectState()
        found.add_model(state)
        return found

    [state] = project(as_written=False).models.values()
    names = [index.name for index in state.options["indexes"]]
    assert len(set(names)) == 5
    assert max(map(len, names)) <= 30
    assert {index.deconstruct()[0] for index in state.options["indexes"]} == {"django.db.models.Index"}
    autodetector = MigrationAutodetector(project(as_written=True), project(as_written=False))
    assert autodetector._detect_changes() == {}


def test_plain_sql_can_insert_rows(processors):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO records_upload (size, result) VALUES (3, '')")
    row = Upload.objects.values().get()
    assert row["queued_at"] is not None
    assert (row["state"], row["execution_logs"], row["lease_number"], row["cancel"]) == ("queued", [], 0, False)
