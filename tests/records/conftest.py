"""Workers with the registry of the test, and handlers that wait for it."""

import threading
from contextlib import contextmanager

import pytest
from django.db import connection

from django_jobchains.processors import Processors
from tests.records.models import Upload


@pytest.fixture
def processors(db, registry):
    """Return the only slice of the project."""
    part = Processors()
    registry.add(part)
    return part


@pytest.fixture
def register(processors):
    """Register a function that handles uploads."""

    def register(handle=lambda record, run: None, **options):
        return processors.records(Upload, **options)(handle)

    return register


@pytest.fixture
def kind(register, processors):
    """The registration of uploads, with a handler that returns at once."""
    register()
    return processors.record_types["records.upload"]


@pytest.fixture
def handled(processors, make_worker):
    """Let a worker handle one record, and return it as it is stored at the end, or None if it is deleted."""

    def handled(handle=None, options=None, model=Upload, **values):
        if handle is not None:
            processors.records(model, **(options or {}))(handle)
        record = model.objects.create(**values)
        make_worker(slots=1, poll_seconds=0.05).run_until_idle(timeout=20)
        return model.objects.filter(pk=record.pk).first()

    return handled


@pytest.fixture
def handling(register, start_worker):
    """Let a worker handle an upload, and return the worker when the handler has started."""

    def handling(handler, **options):
        register(handler, **options)
        Upload.objects.create()
        worker = start_worker()
        handler.until_started()
        return worker

    return handling


@pytest.fixture
def quick_resets(settings):
    """Let workers reset and cancel records often, and let these records be due again at once."""
    settings.JOBCHAINS = {"REAP_SECONDS": 0.05, "BACKOFF_INITIAL_SECONDS": 0.05, "BACKOFF_JITTER": 0}


@contextmanager
def refusing(condition, table=Upload._meta.db_table, columns=""):
    """Let a trigger refuse updates of rows that meet a condition."""
    when = f"CREATE TRIGGER refuse BEFORE UPDATE {columns} ON {table} FOR EACH ROW WHEN ({condition})"
    if connection.vendor == "sqlite":
        begin = [f"{when} BEGIN SELECT RAISE(ABORT, 'refused'); END"]
        end = "DROP TRIGGER refuse"
    else:
        body = "BEGIN RAISE EXCEPTION 'refused'; END"
        begin = [f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$"]
        begin += [f"{when} EXECUTE FUNCTION refuse()"]
        end = "DROP FUNCTION refuse CASCADE"
    with connection.cursor() as cursor:
        for statement in begin:
            cursor.execute(statement)
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute(end)


class Waiting:
    """A handler that waits until the test releases it or, if it ``heeds`` that, until its attempt is aborted."""

    def __init__(self, *, heeds=True):
        self.started, self.released = threading.Event(), threading.Event()
        self.runs, self.reasons = [], []
        self.heeds = heeds

    def __call__(self, record, run):
        self.runs.append(run)
        self.started.set()
        while not (run.signal.aborted and self.heeds) and not self.released.wait(0.005):
            pass
        self.reasons.append(run.signal.reason)
        if self.heeds:
            run.signal.raise_if_aborted()

    def until_started(self):
        assert self.started.wait(30)
