"""Wake budgets in a bucket of JetStream: how many of a hint's jobs somebody already looks for."""

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
from django_jobchains.texts import log_text

logger = getLogger("django_jobchains")

#: Whoever hears a hint asks at once: nobody asks for it any more after this time.
REMEMBERED_SECONDS = 10
#: All that the bucket may hold. What does not fit is not known: workers look.
MOST_BYTES = 16 * 1024 * 1024
#: Of those who ask for one hint at once, one succeeds at each try.
TRIES = 10
#: For the server to say whether it has JetStream. One that forbids to ask does not answer at all.
ANSWER_SECONDS = 2.0
#: Before a bucket that somebody deleted is made again.
AGAIN_SECONDS = 5.0
#: "Wrong last sequence", as new servers number it, which old clients do not know.
_CHANGED = 10164


class WakeBudgets:
    """``wanted``: see ``NatsNotifier``. Everything here runs in the thread of the connection's event loop."""

    def __init__(self, bucket: str, *, wanted: bool | None) -> None:
        self._bucket = bucket
        self._wanted = wanted
        self._has_said = False
        self._opened: OpenedBucket | None = None
        #: Set when the server has answered whether there is a bucket.
        self._answered: asyncio.Event | None = None

    async def keep(self, client: Client) -> None:
        """Opens the bucket for as long as a connection lasts, and again when it was deleted."""
        while self._wanted is not False:
            answered = self._answered = asyncio.Event()
            try:
                opened = self._opened = await self._open(client)
            except Exception as error:  # whatever is wrong with JetStream, hints go on without it
                self._say_that_there_are_none(error)
                return
            finally:
                answered.set()
            try:
                await opened.gone.wait()
            finally:
                if self._opened is opened:
                    self._opened = None
            await asyncio.sleep(AGAIN_SECONDS)

    async def take(self, hint: Hint, most: int, group: str) -> int | None:
        if self._answered is not None:
            await self._answered.wait()
        if self._opened is None or hint.count is None:
            return None
        return await self._opened.take(hint.id, hint.count, most, group)

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
                description="django_jobchains: jobs that workers were told of",
                ttl=REMEMBERED_SECONDS,
                max_bytes=MOST_BYTES,
                storage=StorageType.MEMORY,
            )
        except BadRequestError:  # another process made one meanwhile, with settings of its own
            return await jetstream.key_value(self._bucket)

    def _say_that_there_are_none(self, error: Exception) -> None:
        if self._wanted:
            text = "NATS: no wake budgets, though they are asked for: JetStream cannot be used here, %s"
            logger.warning(text, log_text(error))
        elif not self._has_said:
            self._has_said = True
            logger.info("NATS: no wake budgets, each idle worker looks for each job: no JetStream, %s", log_text(error))


class OpenedBucket:
    """One connection's way to the bucket."""

    def __init__(self, bucket: KeyValue) -> None:
        self._bucket = bucket
        #: Threads of one process do not compete with each other.
        self._lock = asyncio.Lock()
        self.gone = asyncio.Event()

    async def take(self, hint_id: str, count: int, most: int, group: str) -> int | None:
        key = hashlib.sha256(f"{hint_id} {group}".encode(errors="replace")).hexdigest()[:32]
        async with self._lock:
            try:
                return await self._take(key, count, most)
            except NoStreamResponseError:
                self.gone.set()
                raise

    async def _take(self, key: str, count: int, most: int) -> int | None:
        taken = revision = 0
        for _ in range(TRIES):
            share = max(min(most, count - taken), 0)
            if not share or await self._write(key, taken + share, revision):
                return share
            await asyncio.sleep(random.uniform(0, 0.005))  # noqa: S311 - so that competitors fall out of step
            try:
                entry = await self._bucket.get(key)
            except KeyNotFoundError:
                return None
            taken, revision = int(entry.value or b"0"), entry.revision or 0
        return None

    async def _write(self, key: str, taken: int, revision: int) -> bool:
        """Whether nobody wrote since that revision; 0: nobody ever did."""
        try:
            await self._bucket.update(key, str(taken).encode(), last=revision)
        except KeyWrongLastSequenceError:
            return False
        except APIError as error:
            if error.err_code != _CHANGED:
                raise
            return False
        return True
