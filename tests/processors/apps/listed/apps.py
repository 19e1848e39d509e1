from django.apps import AppConfig


class ListedConfig(AppConfig):
    name = "tests.processors.apps.listed"
    jobchains_modules = ["work", "tests.processors.apps.listed.billing.jobs"]
