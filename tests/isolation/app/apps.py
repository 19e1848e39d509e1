from django.apps import AppConfig


class IsolationConfig(AppConfig):
    name = "tests.isolation.app"
    label = "isolation_app"
    jobchains_modules = ("jobs", "hostile_jobs", "traced_jobs")
