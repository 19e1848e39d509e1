from django.apps import AppConfig

PATTERNS = ("approval", "branched", "compensation", "fan_in", "go_to", "loop", "nested", "recurring")


class ShopConfig(AppConfig):
    name = "shop"
    verbose_name = "The Tin Kettle"
    #: Where this app declares its jobs. An app with a single jobs.py needs no such line.
    jobchains_modules = ("jobs", "stocktaking", *(f"shop.patterns.{name}" for name in PATTERNS))
