"""Masks passwords and tokens in URLs, which are recognized without a name."""

import re
from functools import partial

#: ``://``, which may be ``:\\/\\/`` in JSON.
_SLASHES = r":(?:\\{0,7}/){2}"
#: An address, with anything that touches it. A comma ends it if another address follows.
_ADDRESS = re.compile(r"""(?:[^\s"'<>,;]++|[,;](?![a-z][a-z\d+.-]{0,20}""" + _SLASHES + "))++", re.IGNORECASE)
#: ``http://localhost:8000/@scope`` has a port and no password, as browsers read it.
_WEB_PORT = rf"(?:(?<=http)|(?<=https)|(?<=ws)|(?<=wss)){_SLASHES}[^/@:?#]*+:\d{{1,5}}\\{{0,7}}[/?#]"
_TO_PASSWORD = re.compile(rf"(?!{_WEB_PORT}){_SLASHES}(?!\[)[^/@:?#]*+:", re.IGNORECASE)
#: The user in an HTTP address without a password is usually a token.
_TOKEN_AS_USER = re.compile(
    rf"""(?P<begin>https?{_SLASHES})[^\s/@:?#"'<>,;\\]{{1,512}}+(?=:?(?:x-oauth-basic)?@)""", re.IGNORECASE
)
_PORT = re.compile(r"\d{1,5}(?:\\{0,7}[/?#].*|\W*)", re.DOTALL)
#: A password with quotes in it, which no ``_ADDRESS`` has.
_QUOTED_PASSWORD = re.compile(rf"""({_SLASHES}[^\s/@:?#]{{0,256}}+:)(?!\d{{1,5}}["'])[^\s/@]{{1,512}}+(?=@)""")


def may_have_url(text: str) -> bool:
    return "://" in text or ":\\" in text


def without_url_secrets(text: str, mask: str) -> str:
    """Return the text with masked passwords in its URLs, and masked users in HTTP URLs without a password."""
    if not may_have_url(text):
        return text
    text = _TOKEN_AS_USER.sub(rf"\g<begin>{mask}", text)
    return _QUOTED_PASSWORD.sub(rf"\1{mask}", _ADDRESS.sub(partial(_without_password, mask), text))


def _without_password(mask: str, address: re.Match[str]) -> str:
    text = address.group()
    at = text.rfind("@")  # the last one, as the password may contain others
    if at > 0 and (found := _TO_PASSWORD.search(text, 0, at)):
        return f"{text[: found.end()]}{mask}{text[at:]}"
    is_at_end = address.end() == len(address.string)  # the rest of the address may have been cut off
    if is_at_end and (found := _TO_PASSWORD.search(text, at + 1)) and not _PORT.fullmatch(text, found.end()):
        return f"{text[: found.end()]}{mask}"
    return text
