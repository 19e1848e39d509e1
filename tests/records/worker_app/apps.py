from django.apps import AppConfig


class IsolatedRecordsConfig(AppConfig):
    name = "tests.records.worker_app"
    label = "isolated_records"
