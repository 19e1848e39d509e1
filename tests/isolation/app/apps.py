from django.apps import AppConfig


class IsolationConfig(AppConfig):
    name = "tests.isolation.app"
    label = "isolation_app"
    jobchains_modules = ("sync_jobs", "async_jobs", "batch_jobs", "hostile_jobs", "soak_jobs", "traced_jobs")
