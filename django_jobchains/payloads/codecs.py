"""Encodes payloads before they are stored, for example to encrypt them, with ``JOBCHAINS["PAYLOAD_CODEC"]``.

Everything that the permission ``view_payload`` protects is stored with ``encode_json`` and ``encode_text``, and read
with ``decode_json`` and ``decode_text``. An encoded value begins with a marker, so that values that were stored before
the codec was configured can still be read. See docs/decisions/0037-payload-codec.md.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from logging import getLogger
from typing import Any, Protocol

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_jobchains.conf import get_settings
from django_jobchains.exceptions import InvalidPayload
from django_jobchains.text.errors import ENCODED, log_error

__all__ = ("PayloadCodec", "Unreadable", "decode_text")

logger = getLogger("django_jobchains")

#: What encoded values of JSON columns begin with: they are JSON strings. Unencoded values that do are refused.
ENCODED_JSON = f'"{ENCODED}'
#: Stored in place of an error or a log line that the codec cannot encode.
NOT_STORED = "<not stored, because the payload codec failed; the log of the process has the reason>"

#: Is called with "encode" or "decode" and the error when the codec fails. Set by the app config, because this package
#: does not import the telemetry.
on_failure: Callable[[str, Exception], object] | None = None


class PayloadCodec(Protocol):
    """Encodes the texts of payloads before they are stored. One instance serves all threads of a process.

    The methods are called while jobs are written, also inside transactions, so they must not wait for a network. Load
    keys in ``__init__``.
    """

    def encode(self, text: str) -> str:
        """Return the text to store, which must not contain NUL characters or lone surrogates."""

    def decode(self, encoded: str) -> str:
        """Return the text that was encoded. Raise any exception if that is not possible."""


Keys = Sequence[str | bytes]


class FernetCodec:
    """Encrypts (AES-128 and HMAC-SHA256) with the first key, and decrypts with any of them.

    ``keys``: a list of Fernet keys, a function that returns one, or the dotted path of such a function. It is called
    once per process.
    """

    def __init__(self, keys: Keys | Callable[[], Keys] | str) -> None:
        try:
            from cryptography.fernet import Fernet, MultiFernet
        except ImportError as error:
            raise ImproperlyConfigured(
                "FernetCodec needs the package cryptography: install django_jobchains[encryption]."
            ) from error
        self._fernet = MultiFernet([_checked(Fernet, key) for key in _listed(keys)])

    def encode(self, text: str) -> str:
        return self._fernet.encrypt(text.encode()).decode()

    def decode(self, encoded: str) -> str:
        return self._fernet.decrypt(encoded).decode()


def _listed(keys: Any) -> Keys:
    if isinstance(keys, str) and "." in keys:  # a key, given by mistake instead of a list, must not be in an error
        keys = import_string(keys)
    if callable(keys):
        keys = keys()
    if not isinstance(keys, list | tuple) or not keys:
        raise ValueError(
            "keys must be a list with at least one Fernet key, or a function that returns one. A new key: python -c "
            "'from cryptography.fernet import Fernet; print(Fernet.generate_key().decode())'"
        )
    return keys


def _checked(fernet: Any, key: Any) -> Any:
    try:
        return fernet(key)
    except (TypeError, ValueError):
        # The message does not quote the key.
        raise ValueError("one of the keys is not a Fernet key, which is 32 bytes in URL-safe base64") from None


@lru_cache(maxsize=1)
def get_codec() -> PayloadCodec | None:
    """Return the codec of the settings, or None. Raise ``ImproperlyConfigured`` if it cannot be used."""
    setting: Mapping[str, Any] = get_settings().PAYLOAD_CODEC
    if not setting:
        return None
    path = setting["BACKEND"]
    try:
        codec: PayloadCodec = import_string(path)(**setting.get("OPTIONS", {}))
    except ImproperlyConfigured:
        raise
    except Exception as error:  # a function that reads the keys may raise anything
        text = f"JOBCHAINS['PAYLOAD_CODEC']: {path} cannot be used: {type(error).__name__}: {error}"
        raise ImproperlyConfigured(text) from error
    return codec


def encode_json(text: str) -> str:
    """Encode a JSON text for a JSON column. A text that is already encoded is returned unchanged."""
    codec = get_codec()
    if codec is None or text.startswith(ENCODED_JSON):
        return text
    return json.dumps(ENCODED + _encode(codec, text))


def decode_json(stored: str, error: type[InvalidPayload]) -> str:
    """Decode a stored JSON text; raise ``error`` if it cannot be decoded."""
    return _decode(json.loads(stored), error) if stored.startswith(ENCODED_JSON) else stored


def encode_text(text: str) -> str:
    """Encode an error or a log line for storage. Never raises, because recording a failure must not fail."""
    if not text or text.startswith(ENCODED):
        return text
    try:
        codec = get_codec()
        return text if codec is None else ENCODED + _encode(codec, text)
    except Exception as error:
        log_error(logger, error, "The payload codec failed, so an error or a log line of a job is not stored: %s")
        return NOT_STORED


def decode_text(stored: str) -> str:
    """Decode a stored text, or return the reason why it cannot be decoded."""
    if not stored.startswith(ENCODED):
        return stored
    try:
        return _decode(stored, InvalidPayload)
    except Exception as error:
        text = UnreadableText(Unreadable(error))
        text.stored = stored
        return text


def decoded_value(value: Any) -> Any:
    """Return the value of a JSON column as the database driver returns it, decoded, or an ``Unreadable``."""
    if not (isinstance(value, str) and value.startswith(ENCODED)):
        return value
    try:
        return json.loads(_decode(value, InvalidPayload))
    except Exception as error:
        return Unreadable(error, json.dumps(value))


def encode_payloads(row: dict[str, Any]) -> dict[str, Any]:
    """Encode the payloads of a row to write, in place, and return the row."""
    for name in ("input", "output", "context"):
        if text := row.get(name):
            row[name] = encode_json(text)
    for name in ("error", "traceback"):
        if text := row.get(name):
            row[name] = encode_text(text)
    if continuation := row.get("continuation"):
        encode_payloads(continuation)
    return row


class Unreadable:
    """Stands for a stored value that cannot be decoded. It is not JSON, and ``str()`` of it is the reason.

    ``stored``: its JSON text, which is written again when a model instance is saved.
    """

    def __init__(self, reason: Exception, stored: str = "") -> None:
        self.reason = reason
        self.stored = stored

    def __str__(self) -> str:
        return f"<{self.reason}>"

    __repr__ = __str__


class UnreadableText(str):  # noqa: SLOT000 - values of models are pickled
    """The reason why a stored text cannot be decoded. ``stored``: see ``Unreadable``."""

    stored = ""


@contextmanager
def _reporting(operation: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if on_failure is not None:
            on_failure(operation, error.__cause__ if isinstance(error.__cause__, Exception) else error)
        raise


@_reporting("encode")
def _encode(codec: PayloadCodec, text: str) -> str:
    return codec.encode(text)


@_reporting("decode")
def _decode(stored: str, error: type[InvalidPayload]) -> str:
    codec = get_codec()
    if codec is None:
        raise error(
            "The stored value is encoded, but JOBCHAINS['PAYLOAD_CODEC'] is not set. Set the codec that encoded it."
        )
    try:
        return codec.decode(stored.removeprefix(ENCODED))
    except (MemoryError, OSError):  # not about the value
        raise
    except Exception as problem:
        raise error(
            f"JOBCHAINS['PAYLOAD_CODEC'] cannot decode the stored value ({type(problem).__name__}). If a key was "
            "removed, add it to the keys again, and retry the job if it has failed."
        ) from problem


def _on_setting_changed(*, setting: str, **kwargs: Any) -> None:
    if setting == "JOBCHAINS":
        get_codec.cache_clear()


setting_changed.connect(_on_setting_changed)
