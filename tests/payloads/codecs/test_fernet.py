"""The Fernet codec fulfils the contract of codecs, and system checks refuse wrong options."""

import base64
import sys

import pytest
from cryptography.fernet import InvalidToken
from django.core.checks import run_checks
from django.test import override_settings

from django_jobchains.payloads.codecs import FernetCodec
from django_jobchains.testing.contracts import PayloadCodecContract
from tests.payloads.codecs.conftest import NEW_KEY, OLD_KEY, fernet


def get_keys():
    return [NEW_KEY, OLD_KEY]


def no_keys():
    raise KeyError("JOBCHAINS_KEY")


class TestFernetCodec(PayloadCodecContract):
    def make(self):
        return FernetCodec(keys=[NEW_KEY])


@pytest.mark.parametrize("keys", [get_keys, f"{__name__}.get_keys", get_keys()])
def test_the_first_key_encrypts_and_all_keys_decrypt(keys):
    codec, old, new = FernetCodec(keys=keys), FernetCodec(keys=[OLD_KEY]), FernetCodec(keys=[NEW_KEY])
    assert codec.decode(old.encode("text")) == "text"
    assert new.decode(codec.encode("text")) == "text"


def test_a_text_that_was_changed_is_refused():
    codec = FernetCodec(keys=[OLD_KEY])
    encoded = bytearray(base64.urlsafe_b64decode(codec.encode("text")))
    encoded[-1] ^= 1
    with pytest.raises(InvalidToken):
        codec.decode(base64.urlsafe_b64encode(encoded).decode())


@pytest.mark.django_db  # Django's check of JSON fields queries the database once in a process.
@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ({"OPTIONS": {}}, "must be {'BACKEND': dotted path"),
        ("django_jobchains.payloads.codecs.FernetCodec", "must be {'BACKEND': dotted path"),
        ({"BACKEND": "no.such.Codec"}, "no.such.Codec cannot be used: ModuleNotFoundError: No module"),
        ({**fernet()["PAYLOAD_CODEC"], "OPTIONS": {}}, "missing 1 required positional argument: 'keys'"),
        (fernet()["PAYLOAD_CODEC"], "a list with at least one Fernet key"),
        (fernet(OLD_KEY, "django-insecure-key")["PAYLOAD_CODEC"], "one of the keys is not a Fernet key"),
        ({**fernet()["PAYLOAD_CODEC"], "OPTIONS": {"keys": OLD_KEY}}, "a list with at least one Fernet key"),
        ({**fernet()["PAYLOAD_CODEC"], "OPTIONS": {"keys": f"{__name__}.no_keys"}}, "KeyError: 'JOBCHAINS_KEY'"),
    ],
)
def test_an_unusable_codec_is_a_system_check_error_without_its_keys(setting, problem):
    with override_settings(JOBCHAINS={"PAYLOAD_CODEC": setting}):
        (message,) = (message for message in run_checks() if str(message.id).startswith("jobchains."))
    assert message.id in ("jobchains.E001", "jobchains.E011")
    assert problem in message.msg
    assert OLD_KEY not in message.msg
    assert "django-insecure-key" not in message.msg


@pytest.mark.django_db
def test_without_cryptography_the_check_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "cryptography.fernet", None)
    with override_settings(JOBCHAINS=fernet(OLD_KEY)):
        (message,) = (message for message in run_checks() if str(message.id).startswith("jobchains."))
    assert message.id == "jobchains.E011"
    assert message.msg == "FernetCodec needs the package cryptography: install django_jobchains[encryption]."
    assert message.hint == "Correct settings.JOBCHAINS['PAYLOAD_CODEC']."
