"""Wake budgets in a JetStream bucket: how many of a hint's jobs workers already claim."""

import asyncio
import hashlib
import random
from logging import getLogger

from nats.aio.client import Client
from nats.js.api import StorageType
from nats.js.client import JetStreamContext
from nats.js.errors import (
    APIError,
    BadRequestError,
    BucketNotFoundError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NoStreamResponseError,
)
from nats.js.kv import KeyValue

from django_jobchains.notifications.hints import Hint
from django_jobchains.text.errors import log_text

logger = getLogger("django_jobchains")

#: How long the bucket keeps a budget. Workers that receive a hint use its budget immediately.
REMEMBERED_SECONDS = 10
#: The size of the bucket. Budgets that do not fit are unknown, so that every worker queries.
MAX_BYTES = 16 * 1024 * 1024
#: Of the workers that ask for one hint at the same time, one succeeds with each try.
MAX_TRIES = 10
#: How long to wait for the server to report whether it has JetStream. One that forbids the request does not respond.
ANSWER_SECONDS = 2.0
#: How long to wait before a deleted bucket is created again.
RETRY_SECONDS = 5.0
#: "Wrong last sequence" as new servers number it; old clients do not know this number.
_WRONG_LAST_SEQUENCE = 10164


class WakeBudgets:
    """``wanted``: see ``NatsNotifier``. All methods run in the thread of the connection's event loop."""

    def __init__(self, bucket: str, *, wanted: bool | None) -> None:
        self._bucket = bucket
        self._wanted = wanted
        self._is_absence_logged = False
        self._opened: OpenedBucket | None = None
        #: Set when the server has reported whether there is a bucket.
        self._answered: asyncio.Event | None = None

    async def keep(self, client: Client) -> None:
        """Open the bucket for as long as the connection lasts, and again after it was deleted."""
        while self._wanted is not False:
            answered = self._answered = asyncio.Event()
            try:
                opened = self._opened = await self._open(client)
            except Exception as error:  # whatever is wrong with JetStream, hints work without it
                self._log_absence(error)
                return
            finally:
                answered.set()
            try:
                await opened.gone.wait()
            finally:
                if self._opened is opened:
                    self._opened = None
            await asyncio.sleep(RETRY_SECONDS)

    async def take(self, hint: Hint, limit: int, group: str) -> int | None:
        """See ``Notifier.take``."""
        if self._answered is not None:
            await self._answered.wait()
        if self._opened is None or hint.count is None:
            return None
        return await self._opened.take(hint.id, hint.count, limit, group)

    async def _open(self, client: Client) -> "OpenedBucket":
        jetstream = client.jetstream(timeout=ANSWER_SECONDS)
        try:
            return OpenedBucket(await jetstream.key_value(self._bucket))
        except BucketNotFoundError:
            return OpenedBucket(await self._create(jetstream))

    async def _create(self, jetstream: JetStreamContext) -> KeyValue:
        try:
            return await jetstream.create_key_value(
                bucket=self._bucket,
                description="django_jobchains: wake budgets of workers",
                ttl=REMEMBERED_SECONDS,
                max_bytes=MAX_BYTES,
                storage=StorageType.MEMORY,
            )
        except BadRequestError:  # another process has just created one with other settings
            return await jetstream.key_value(self._bucket)

    def _log_absence(self, error: Exception) -> None:
        if self._wanted:
            text = "NATS: no wake budgets, although they are required: JetStream cannot be used: %s"
            logger.warning(text, log_text(error))
        elif not self._is_absence_logged:
            self._is_absence_logged = True
            text = "NATS: no wake budgets, every idle worker queries for each hint: JetStream cannot be used: %s"
            logger.info(text, log_text(error))


class OpenedBucket:
    """The bucket as one connection uses it."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket
        #: The threads of one process do not compete with each other.
        self._lock = asyncio.Lock()
        self.gone = asyncio.Event()

    async def take(self, hint_id: str, count: int, limit: int, group: str) -> int | None:
        key = hashlib.sha256(f"{hint_id} {group}".encode(errors="replace")).hexdigest()[:32]
        async with self._lock:
            try:
                return await self._take(key, count, limit)
            except NoStreamResponseError:
                self.gone.set()
                raise

    async def _take(self, key: str, count: int, limit: int) -> int | None:
        taken = revision = 0
        for _ in range(MAX_TRIES):
            share = max(min(limit, count - taken), 0)
            if not share or await self._write(key, taken + share, revision):
                return share
            await asyncio.sleep(random.uniform(0, 0.005))  # noqa: S311 - spreads competitors
            try:
                entry = await self._bucket.get(key)
            except KeyNotFoundError:
                return None
            taken, revision = int(entry.value or b"0"), entry.revision or 0
        return None

    async def _write(self, key: str, taken: int, revision: int) -> bool:
        """Return False if another process has written since that revision; revision 0 means a new key."""
        try:
            await self._bucket.update(key, str(taken).encode(), last=revision)
        except KeyWrongLastSequenceError:
            return False
        except APIError as error:
            if error.err_code != _WRONG_LAST_SEQUENCE:
                raise
            return False
        return True
