"""Addresses as text: which parts may be shown, and which identify an object.

What follows a `?` may be a signature, and what precedes an `@` a password: neither appears in any message, repr, state
or file name. An object is identified by its address, without the parts that grant access or limit it in time.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

HIDDEN = "…"
WEB = ("http", "https")
# Protocols in which a name before the `@` is a login even without a password; in others it may be part of the place.
LOGINS = (*WEB, "ftp", "ftps", "sftp", "ssh", "smb", "webdav", "webhdfs", "hdfs")
# Protocols in which what precedes the `@` is never a login: `github://org:repo@main/a`, `abfs://container@host`.
PLACES = ("github", "gitlab", "git", "abfs", "abfss", "az", "adl", "wasb", "wasbs", "memory", "file", "local")
PLACES += ("zip", "tar", "libarchive")

SIGNING_PREFIXES = ("x-amz-", "x-goog-", "x-oss-", "x-cos-", "x-ms-", "q-sign-", "q-ak", "q-key-")
_WORD = r"[\w-]+"
SIGNING = frozenset(
    re.findall(
        _WORD,
        """signature sig hmac expires expiry awsaccesskeyid googleaccessid ossaccesskeyid key-pair-id hdnea hdnts
        access_token accesstoken session_token sas_token security-token jwt api_key apikey api-key password passwd
        secret client_secret authorization""",
    )
)
# Azure's parameters have common names of two letters: they are signatures only together with a `sig`.
SAS = frozenset(
    re.findall(_WORD, "se sp sr ss st sv si sip spr srt sdd ses skoid sktid skt ske sks skv saoid suoid scid")
)
CLOUDFRONT = frozenset(["policy"])  # together with a `signature`
# They mostly say who asks, but some servers use them to select the object.
UNSURE = frozenset(["token", "key", "auth", "auth_token", "user", "username", "pwd", "pass"])

_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*(?:::[a-zA-Z0-9+.:-]*)?://")
_IN_TEXT = re.compile(  # up to a space or a quote (unless that is in a password), without the end of a sentence
    r"(?<![a-zA-Z0-9])[a-zA-Z][a-zA-Z0-9+.-]{0,30}://(?:[^\s'\"<>`]|'(?=[\w@%]))*[^\s'\"<>`.,:;)\]}]"
)
_CHAINED = re.compile(r"::(?=[a-zA-Z0-9+.-]+(?:://|::))")
_LINK = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*)://(.*)", re.DOTALL)
_AUTHORITY_LOGIN = re.compile(r"[^/?#\s]*@")
_UNQUOTED_LOGIN = re.compile(r"[^\s/?#@:\[]*:(?!\d*(?:[/?#]|$))\S*@")  # with a password that contains a `/` or `?`
_QUERY = re.compile(r"\?(?=[^/?]*=).*", re.DOTALL)  # outside the web a `?` may be part of a pattern
_WEB_QUERY = re.compile(r"[?#].+", re.DOTALL)
_SHOWN_QUERY = re.compile(r"\?…(?:#[0-9a-f]{12})?")
_LOOSE_QUERY = re.compile(r"([?&])[\w.%~-]{1,60}=[^\s'\"<>`&]*[^\s'\"<>`&.,:;)\]}](?:&[^\s'\"<>`]*)?")

_SECRET_NAME = (
    r"(?:password|passwd|pwd|secret|secret[_-]?(?:access[_-]?)?key|(?:access|auth|session|sas|security|refresh)[_-]?token"
    r"|api[_-]?key|account[_-]?key|access[_-]?key(?:[_-]?id)?|connection[_-]?string|authorization|signature)"
)
_SECRET_PAIR = re.compile(
    rf"(?i)({_SECRET_NAME}(?:\s?=\s?|['\"]\s?:\s?)|(?<![a-z0-9_])token\s?=\s?)"
    r"(?:'[^']*'|\"[^\"]*\"|[^\s,;&'\")}\]]+)"
)
_BEARER = re.compile(r"\b(Bearer|Basic) +[A-Za-z0-9._~+/=-]{8,}")
_SECRET_OPTION = re.compile(r"(?i)key|secret|token|pass|pwd|sas|credential|auth|connection_str|cookie|user|login|cert")
_LOGIN_OPTION = re.compile(rf"{_SECRET_OPTION.pattern}|anon|profile|session")
_SHORTEST_SECRET = 6


class AddressPart(NamedTuple):
    """The parts of one address of a chain."""

    protocol: str
    login: str  # with its `@`
    place: str
    query: str  # with its `?`


def redacted(text: str, secrets: Iterable[str] = ()) -> str:
    """A text without the logins and queries of its addresses, without passwords, and without these secrets.

    >>> redacted("Reading https://me:pw@host/a.csv?token=abc failed.")
    'Reading https://…@host/a.csv?… failed.'
    """
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return _without_pairs(_each_address(text, _hidden))


def with_identity_digest(text: str) -> str:
    """A text whose addresses are the same if their objects are: it has a digest of what selects an object.

    >>> with_identity_digest("https://me:pw@host/get?id=3&token=abc"), with_identity_digest("https://host/a.csv?token=abc")
    ('https://host/get?…#3a61b75b7aa2', 'https://host/a.csv')
    """
    return _without_pairs(_each_address(text, _hidden_with_digest))


def identity(address: str, *, unsure: bool = False) -> str:
    """What identifies the object behind an address; for a path on this machine, the path.

    With `unsure`, this includes parameters that may select the object or only say who asks, such as `key=…`.

    >>> identity("https://me:pw@host/get?id=3&X-Amz-Signature=abc")
    'https://host/get?id=3'
    """
    if not _ADDRESS.match(address):
        return address
    return "::".join(_identity_of(link, unsure=unsure) for link in _CHAINED.split(address))


def bare_address(address: str) -> str:
    """One address without login and query; a path on this machine stays as it is."""
    link = _parsed(address)
    return f"{link.protocol}://{link.place}" if isinstance(link, AddressPart) else link


def digest(text: str) -> str:
    """A file name for a text that does not reveal the text."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


def secrets_in(options: Any) -> list[str]:
    """The texts among a driver's options that must not be shown."""
    if not isinstance(options, Mapping):
        return []
    found = []
    for name, value in options.items():
        if isinstance(value, Mapping):
            found += secrets_in(value)
        elif isinstance(value, str) and len(value) >= _SHORTEST_SECRET and _SECRET_OPTION.search(str(name)):
            found.append(value)
    return sorted(found, key=len, reverse=True)


def without_login(options: Any) -> Any:
    """The driver's options that say where an object is, without those that say who asks."""
    if isinstance(options, Mapping):
        kept = {str(k): without_login(v) for k, v in options.items() if not _LOGIN_OPTION.search(str(k))}
        return {name: value for name, value in sorted(kept.items()) if value is not None}
    if isinstance(options, list | tuple):
        return [without_login(value) for value in options]
    # The repr of other objects may differ between processes.
    return identity(options) if isinstance(options, str) else options if isinstance(options, int | float) else None


def _each_address(text: str, change: Callable[[AddressPart], str]) -> str:
    """A text with each address in it changed."""

    def change_all(found: re.Match[str]) -> str:
        links = [_parsed(link) for link in _CHAINED.split(found[0])]
        return "::".join(change(link) if isinstance(link, AddressPart) else link for link in links)

    return _IN_TEXT.sub(change_all, text) if "://" in text else text


def _without_pairs(text: str) -> str:
    if "=" not in text and ":" not in text:
        return text
    text = _LOOSE_QUERY.sub(rf"\1{HIDDEN}", text)  # of an address that was cut, or contains a space
    return _BEARER.sub(rf"\1 {HIDDEN}", _SECRET_PAIR.sub(rf"\1{HIDDEN}", text))


def _parsed(link: str) -> AddressPart | str:
    """The parts of a link; a link without a place, such as `simplecache`, stays as it is."""
    found = _LINK.fullmatch(link)
    if found is None:
        return link
    protocol = found[1].lower()
    rest = found[2]
    login = "" if protocol in PLACES else _login(protocol, rest)
    rest = rest[len(login) :]
    query = (_WEB_QUERY if protocol in WEB else _QUERY).search(rest)
    return AddressPart(found[1], login, rest[: query.start()] if query else rest, query[0] if query else "")


def _login(protocol: str, rest: str) -> str:
    found = _AUTHORITY_LOGIN.match(rest)
    if found is None:
        found = _UNQUOTED_LOGIN.match(rest)
    if found is None or (":" not in found[0] and protocol not in LOGINS):
        return ""
    return found[0]


def _hidden(link: AddressPart) -> str:
    query = link.query if _SHOWN_QUERY.fullmatch(link.query) else f"?{HIDDEN}" if link.query else ""
    return f"{link.protocol}://{HIDDEN + '@' if link.login else ''}{link.place}{query}"


def _hidden_with_digest(link: AddressPart) -> str:
    if _SHOWN_QUERY.fullmatch(link.query):
        return _hidden(link)
    kept = _selecting(link.query, unsure=False)
    return f"{link.protocol}://{link.place}{f'?{HIDDEN}#{digest(kept)[:12]}' if kept else ''}"


def _identity_of(link: str, *, unsure: bool) -> str:
    parts = _parsed(link)
    if not isinstance(parts, AddressPart):
        return parts
    query = _selecting(parts.query, unsure=unsure)
    return f"{parts.protocol}://{parts.place}{'?' + query if query else ''}"


def _selecting(query: str, *, unsure: bool) -> str:
    """The parameters of a query that may select the object, sorted."""
    parts = [part for part in query[1:].split("#")[0].split("&") if part]
    pairs = [(unquote_plus(part.partition("=")[0]).lower(), part) for part in parts]
    names = {name for name, _ in pairs}
    dropped = SIGNING if unsure else SIGNING | UNSURE
    dropped |= (SAS if "sig" in names else frozenset()) | (CLOUDFRONT if "signature" in names else frozenset())
    kept = [pair for pair in pairs if pair[0] not in dropped and not pair[0].startswith(SIGNING_PREFIXES)]
    return "&".join(part for _, part in sorted(kept, key=lambda pair: pair[0]))
