"""What the snippets of the documentation take from a reader's project: its models, values, functions and services.

A snippet imports the names that it does not define itself: see ``tests/typing/snippets.py``. Nothing here is called.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from logging import Logger
from pathlib import Path
from typing import Any, ClassVar, Self
from uuid import UUID

from django.contrib.auth.models import User
from django.db import models
from django_tasks import task

from django_jobchains import FailedJob, JobType, RunningJob
from django_jobchains.middleware import Middleware
from django_jobchains.models import Chain
from django_jobchains.pools import ReusablePool
from django_jobchains.records import JobRecord

# Models


class Row(models.Model):
    objects: ClassVar[models.Manager[Self]]

    class Meta:
        abstract = True


class Account(Row):
    state = models.TextField()


class Cart(Row):
    touched_at = models.DateTimeField()


class Image(models.Model):
    objects: Any


class Letter(Row):
    pass


class Product(Row):
    name = models.TextField()


class Repository(Row):
    pass


class Tenant(Row):
    slug = models.TextField()
    shard = models.TextField()


class Order(Row):
    tenant = models.ForeignKey(Tenant, models.CASCADE)
    chain_id = models.UUIDField()
    address = models.JSONField()
    number = models.IntegerField()
    receipt = models.TextField()

    def mark_charging(self) -> None: ...
    def mark_shipped(self, parcel: str) -> None: ...
    def mark_paid(self, reference: str) -> None: ...
    def cancel(self, reason: str) -> None: ...


class Upload(JobRecord):
    objects: ClassVar[models.Manager["Upload"]]
    details: Any
    megabytes = models.IntegerField()
    repository = models.ForeignKey(Repository, models.CASCADE)
    path = models.TextField()
    status = models.TextField()
    error = models.TextField()
    total = models.IntegerField()


class Conversion(Row):
    upload = models.ForeignKey(Upload, models.CASCADE)
    size = models.IntegerField()


# Inputs and outputs


@dataclass(frozen=True)
class Cake:
    name: str


@dataclass(frozen=True)
class Charge:
    order_id: int


@dataclass(frozen=True)
class Code:
    user_id: int


@dataclass(frozen=True)
class Export:
    year: int


@dataclass(frozen=True)
class Indexed:
    product_id: int
    name: str


@dataclass(frozen=True)
class Mail:
    address: str


@dataclass(frozen=True)
class Money:
    amount: Any
    currency: str


@dataclass(frozen=True)
class Paid:
    reference: str


@dataclass(frozen=True)
class Parcel:
    number: str


@dataclass(frozen=True)
class Payment:
    order_id: int
    tenant_id: int


@dataclass(frozen=True)
class Receipt:
    order_id: int
    reference: str = ""


@dataclass(frozen=True)
class Report:
    id: int = 0
    kind: str = ""


@dataclass(frozen=True)
class Resize:
    image_id: int


@dataclass(frozen=True)
class Shelf:
    product_ids: list[int]


@dataclass(frozen=True)
class Ship:
    order_id: int


@dataclass(frozen=True)
class Sync:
    tenant_id: int


@dataclass(frozen=True)
class Transfer:
    account: int
    target_shard: str


# Job types and tasks

approval: JobType[Any, bool]
bake: JobType[Cake, str]
build_report: JobType[int, dict[str, int]]
charge: JobType[Charge, Receipt]
clean_up: JobType[None, None]
export: JobType[Export, None]
export_orders: JobType[None, None]
import_lines: JobType[int, str]
index: JobType[Indexed, None]
pack: JobType[None, Parcel]
rebuild_index: JobType[None, None]
receive: JobType[Transfer, None]
remind: JobType[None, None]
report: JobType[Report, None]
report_import: JobType[Report, None]
report_sales: JobType[None, None]
resize: JobType[Resize, dict[str, int]]
sample_sensors: JobType[None, None]
send_code: JobType[Code, None]
send_invoices: JobType[None, None]
send_receipt: JobType[Receipt, None]
sync_stock: JobType[None, None]
take: JobType[Any, str]


@task
def mail_orders(order_ids: list[int], recipient: str) -> int:
    raise NotImplementedError


# Classes that another snippet of the page defines


class Compressed:
    def encode(self, text: str) -> str:
        raise NotImplementedError

    def decode(self, encoded: str) -> str:
        raise NotImplementedError


class MoneyType:
    def load(self, value: Any) -> Money:
        raise NotImplementedError

    def dump(self, value: Money) -> Any:
        raise NotImplementedError


class Tenants(Middleware): ...


# Functions and errors


class BadAddress(Exception): ...


class GatewayDown(Exception): ...


class ShopClient:
    def __init__(self, slug: str) -> None: ...
    def __enter__(self) -> "ShopClient":
        return self

    def __exit__(self, *details: object) -> None: ...
    def ship(self, order_id: int) -> None: ...


def client_for(tenant: Any) -> ShopClient:
    raise NotImplementedError


def convert(*source: object) -> None: ...
def mail_receipt(receipt: Any) -> None: ...
def import_line(number: int) -> None: ...
def import_rows(upload: Upload) -> int:
    raise NotImplementedError


def is_permanent(error: BaseException) -> bool:
    raise NotImplementedError


def pages(path: str) -> list[str]:
    raise NotImplementedError


def payloads_of(sources: list[str]) -> Iterator[dict[str, Any]]:
    raise NotImplementedError


def print_label(receipt: Receipt, parcel: Parcel) -> None: ...
def read_page(number: int) -> str:
    raise NotImplementedError


def render(page: str) -> None: ...
def server_of(alias: str) -> Any:
    raise NotImplementedError


# Values

CARRIER: str
STOCK_URL: str
chain: Chain[Any]
chain_id: UUID
job: RunningJob[FailedJob]
logger: Logger
order: Order
pool: ReusablePool
repository: Repository
request: Any
tomorrow: datetime
upload: Upload
user: User
year: int

# Services

converter: Any
gateway: Any
payments: Any
provider: Any

# Settings

BASE_DIR: Path
DATABASES: dict[str, Any]
JOBCHAINS: dict[str, Any]
LOGGING: dict[str, Any]
settings: Any
shared: dict[str, Any]
