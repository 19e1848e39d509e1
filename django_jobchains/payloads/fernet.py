"""Encryption with Fernet keys (AES-128 and HMAC-SHA256), with the package cryptography."""

from collections.abc import Callable, Sequence
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

Keys = Sequence[str | bytes]


class FernetCodec:
    """Encrypts with the first key, and decrypts with any of them.

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
