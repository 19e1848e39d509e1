from django.apps import AppConfig

PATTERNS = ("approval", "branched", "compensation", "fan_in", "go_to", "loop", "nested", "recurring")


class ShopConfig(AppConfig):
    name = "shop"
    verbose_name = "The Tin Kettle"
    #: The modules that declare jobs. An app that declares them all in jobs.py does not need this.
    jobchains_modules = (
        "jobs",
        "labels",
        "nightly",
        "stocktaking",
        "supplier_imports",
        *(f"shop.patterns.{name}" for name in PATTERNS),
    )
