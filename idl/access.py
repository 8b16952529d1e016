"""Who may connect: principals proven by a token or by a certificate, and the TLS that carries them.

A server that listens beyond this machine has both TLS and an authenticator, or does not start. The
secrets live in files that only their owner can read; they are never shown, logged or pickled. This
module decides who somebody is, never what they may do, and knows no transport.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
import os
import re
import ssl
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from idl.call import Principal

LOCAL = Principal("local")
TOKEN_BYTES_MIN = 16
TOKEN_LENGTH_MAX = 512

_PRINCIPAL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,127}", re.ASCII)


class Denied(Exception):
    """The connection is refused. The peer learns no more than that; the reason is for the audit."""


class UnsafeSetting(ValueError):
    """A setting would let strangers in; the message says which, and what to set instead."""


# --- Proving who somebody is ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Presented:
    """What a peer brings when it connects."""

    token: object = field(repr=False)
    certificate: Mapping[str, Any] | None
    host: str


class Authenticator(Protocol):
    """Tells who a peer is."""

    def authenticate(self, presented: Presented) -> Principal:
        """The principal that the peer has proven to be; raises `Denied`."""


class AnyoneHere:
    """Whoever connects from this machine is the principal `local`."""

    def authenticate(self, presented: Presented) -> Principal:
        if not is_loopback(presented.host):
            raise Denied(f"{presented.host} is not this machine")
        return LOCAL


class Tokens:
    """Tokens of the form `name.secret`, of which the server keeps the secret's SHA-256 only."""

    def __init__(self, digests: Mapping[str, str]) -> None:
        for name, digest in digests.items():
            if not _PRINCIPAL_NAME.fullmatch(name) or not re.fullmatch(r"[0-9a-f]{64}", digest):
                raise UnsafeSetting(f"token entry {name[:60]!r} is not of the form name:sha256")
        self._digests = dict(digests)

    def authenticate(self, presented: Presented) -> Principal:
        token = presented.token
        if not isinstance(token, str) or len(token) > TOKEN_LENGTH_MAX:
            raise Denied("no token")
        name, _, secret = token.rpartition(".")
        # An unknown name costs the same work as a wrong secret, so that names cannot be found out.
        known = self._digests.get(name, "0" * 64)
        offered = hashlib.sha256(secret.encode(errors="surrogatepass")).hexdigest()
        if not hmac.compare_digest(known, offered) or name not in self._digests:
            raise Denied("wrong token")
        return Principal(name)

    @classmethod
    def load(cls, path: Path) -> Tokens:
        """Reads lines of the form `name:sha256`; others than the owner must not be able to."""
        entries: dict[str, str] = {}
        for number, line in enumerate(_read_private(path).decode().splitlines(), start=1):
            name, colon, digest = line.partition(":")
            if line.strip() and not line.startswith("#"):
                if not colon or name in entries:
                    raise UnsafeSetting(f"{path}, line {number}: not a new entry name:sha256")
                entries[name] = digest.strip()
        return cls(entries)


def token_entry(token: str) -> str:
    """The line of a token file that admits this token."""
    name, _, secret = token.rpartition(".")
    if not _PRINCIPAL_NAME.fullmatch(name) or len(secret) < 2 * TOKEN_BYTES_MIN:
        raise UnsafeSetting(
            f"a token is name.secret, with a secret of {2 * TOKEN_BYTES_MIN} characters or more"
        )
    return f"{name}:{hashlib.sha256(secret.encode()).hexdigest()}"


class Certificates:
    """A client certificate that our authority signed, whose name is a URI such as `mq:alice`."""

    def authenticate(self, presented: Presented) -> Principal:
        if presented.certificate is None:
            raise Denied("no client certificate")
        names = [
            value.removeprefix("mq:")
            for kind, value in presented.certificate.get("subjectAltName", ())
            if kind == "URI" and value.startswith("mq:")
        ]
        if len(names) != 1 or not _PRINCIPAL_NAME.fullmatch(names[0]):
            raise Denied("the certificate does not name exactly one principal as URI:mq:NAME")
        return Principal(names[0])


class FirstOf:
    """The first authenticator that knows the peer says who it is."""

    def __init__(self, authenticators: Sequence[Authenticator]) -> None:
        self._authenticators = tuple(authenticators)

    def authenticate(self, presented: Presented) -> Principal:
        reasons = []
        for authenticator in self._authenticators:
            try:
                return authenticator.authenticate(presented)
            except Denied as denied:
                reasons.append(str(denied))
        raise Denied("; ".join(reasons))


class Token:
    """A client's token. It shows itself to nobody but the handshake."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        self._secret = secret

    def reveal(self) -> str:
        """The token itself, for the handshake."""
        return self._secret

    def __repr__(self) -> str:
        return "Token(...)"

    def __reduce__(self) -> Any:
        raise TypeError("a token is not pickled: give the other process a file or a variable")

    @classmethod
    def load(cls, path: Path) -> Token:
        """Reads a token from a file that only its owner can read."""
        return cls(_read_private(path).decode().strip())


# --- TLS -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tls:
    """The files of one side: its own certificate and key, and the authority that signs the others'.

    A client without a certificate of its own proves itself by a token.
    """

    authority: Path
    certificate: Path | None = None
    key: Path | None = None

    def server_context(self) -> ssl.SSLContext:
        """A context of this server's own: TLS 1.3, and only our authority is trusted.

        A client that has no certificate may still prove itself by a token.
        """
        if self.certificate is None:
            raise UnsafeSetting("a server needs a certificate: set tls.certificate and tls.key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._load(context)
        context.verify_mode = ssl.CERT_OPTIONAL
        # A ticket would lie unread in an idle client's socket and make it look closed.
        context.num_tickets = 0
        return context

    def client_context(self) -> ssl.SSLContext:
        """A context of this client's own: the server's name is checked, against our authority."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._load(context)
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        key = self.key or self.certificate
        for path in (self.authority, self.certificate, key):
            if path is not None and not path.is_file():
                raise UnsafeSetting(f"the TLS file {path} does not exist")
        try:
            context.load_verify_locations(cafile=self.authority)
            if self.certificate is not None and key is not None:
                _check_private(key)
                # An encrypted key is refused rather than asked about on a terminal nobody watches.
                context.load_cert_chain(self.certificate, key, password=lambda: b"")
        except (ssl.SSLError, ValueError) as wrong:
            files = ", ".join(str(path) for path in (self.authority, self.certificate, key) if path)
            raise UnsafeSetting(f"the TLS files {files} cannot be used: {wrong}") from wrong


def check_listening(host: str, tls: Tls | None, authenticator: Authenticator | None) -> None:
    """Raises `UnsafeSetting` for a server that strangers could reach without proving themselves."""
    if is_loopback(host) or (tls is not None and authenticator is not None):
        return
    lacking = [
        text for text, given in (("TLS", tls), ("an authenticator", authenticator)) if given is None
    ]
    raise UnsafeSetting(
        f"listening on {host} lets other machines in, and this is not set up: "
        f"{' and '.join(lacking)}; "
        "configure TLS and authentication, or listen on 127.0.0.1"
    )


@functools.lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Whether the host is this machine, and cannot be reached from another one."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _read_private(path: Path) -> bytes:
    _check_private(path)
    try:
        return path.read_bytes()
    except OSError as refused:
        raise UnsafeSetting(f"{path} cannot be read: {refused.strerror}") from refused


def _check_private(path: Path) -> None:
    try:
        mode = os.stat(path).st_mode
    except OSError as refused:
        raise UnsafeSetting(f"{path} cannot be read: {refused.strerror}") from refused
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UnsafeSetting(f"{path} can be read or changed by others: chmod 600 {path}")
