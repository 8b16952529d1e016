"""`oncemq.connect`: from a url to a connection. The client's clock and environment come in here.

    url                what it is
    mq://HOST:PORT     a node over the network
    file:DIR           node and coordinator in this process, and their data in the directory
    memory:            the same, and nothing is kept

Without a url it is `$ONCEMQ_URL`, and without that the node of this machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from clients.connection import Connection, Opened, Settings
from clients.errors import OnceMQError
from clients.heartbeat import Heartbeat
from clients.nodes import NETWORK
from idl.access import Tls, Token, UnsafeSetting
from idl.call import Address
from idl.mapping import InvalidValue

DEFAULT_URL = "mq://127.0.0.1:7411"
DEFAULT_PORT = 7411
URL, COORDINATOR, TOKEN_FILE = "ONCEMQ_URL", "ONCEMQ_COORDINATOR", "ONCEMQ_TOKEN_FILE"
TIMEOUT_S = 30.0
AWAKE_S_MAX = 0.01

_RIGHT = 'write "mq://HOST:PORT", "file:DIR" or "memory:"'
_heartbeat = Heartbeat(time.monotonic)


def connect(
    url: str | None = None,
    *,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    tls: Tls | None = None,
    coordinator: str | None = None,
    timeout: float = TIMEOUT_S,
    awake: float = 0.0,
    name: str | None = None,
) -> Connection:
    """A connection to a node, to be shared by threads. Nothing is opened before its first use.

    `token`, or a file of one, and `tls` prove who this is; `coordinator` is found through the node
    unless it is said; `timeout` is how long an answer may take, reconnecting included; `name` is
    the sender of what is put. So many seconds of each answer are waited `awake`, 0.01 at most: that
    spares being woken up, and takes processor time.
    """
    return _connect(
        url, token, token_file, tls, coordinator, timeout, awake, name, environment=os.environ
    )


def _connect(
    url: str | None,
    token: str | None,
    token_file: str | os.PathLike[str] | None,
    tls: Tls | None,
    coordinator: str | None,
    timeout: float,
    awake: float,
    name: str | None,
    environment: Mapping[str, str],
) -> Connection:
    if not 0 < timeout < float("inf"):
        raise ValueError(f"timeout {timeout!r}: an answer may take a positive, finite time")
    if not 0 <= awake <= AWAKE_S_MAX:
        raise ValueError(
            f"awake {awake!r}: of an answer 0 to {AWAKE_S_MAX} seconds are waited awake; 0.0003 "
            "will do on a quick disk"
        )
    chosen = (url or environment.get(URL) or DEFAULT_URL).strip()
    scheme, colon, rest = chosen.partition(":")
    again: dict[str, Any] | None = None
    why_not = "its node runs in this process: connect to a server by mq://"
    way: _NetworkWay | _EmbeddedWay
    address = None
    if colon and scheme == "mq":
        file = token_file or (None if token else environment.get(TOKEN_FILE))
        way = _NetworkWay(_address(chosen), _token(token, file), tls, timeout, awake)
        coordinator = coordinator or environment.get(COORDINATOR)
        address = None if not coordinator else _parsed(coordinator, "the coordinator")
        why_not = "its token is a secret: use token_file, or set ONCEMQ_TOKEN_FILE there"
        if token is None:
            again = {"url": chosen, "tls": tls, "coordinator": coordinator}
            again |= {"timeout": timeout, "name": name, "token_file": file and os.fspath(file)}
            again |= {"awake": awake}
    elif colon and scheme in ("file", "memory"):
        if coordinator or token or token_file or tls:
            raise OnceMQError(f"{chosen!r} has its own coordinator and needs no token and no TLS")
        way = _EmbeddedWay(scheme, _folder(rest) if scheme == "file" else rest)
    else:
        raise OnceMQError(f"{chosen!r} is not a url of OnceMQ: {_RIGHT}")
    settings = Settings(chosen, timeout, name or "", address, again, why_not)
    return Connection(way, settings, _heartbeat, time.monotonic, time.sleep, connect_again)


def connect_again(arguments: dict[str, Any]) -> Connection:
    """The connection that was pickled, in this process."""
    return connect(**arguments)


def _address(url: str) -> Address:
    rest = url.removeprefix("mq:")
    if not rest.startswith("//"):
        raise OnceMQError(f"{url!r} is not a url of OnceMQ: {_RIGHT}")
    place = rest.removeprefix("//").rstrip("/")
    if "@" in place:
        raise OnceMQError("a url holds no secret: pass token=, or token_file=")
    if place and not place.rpartition("]")[2].count(":"):
        place = f"{place}:{DEFAULT_PORT}"
    return _parsed(place, f"the url {url!r}")


def _parsed(text: str, what: str) -> Address:
    try:
        found = Address.parse(text)
    except InvalidValue as wrong:
        raise OnceMQError(f"{what}: {wrong}; {_RIGHT}") from wrong
    if not found.port:
        raise OnceMQError(f"{what}: port 0 cannot be connected to; {_RIGHT}")
    return found


def _folder(rest: str) -> str:
    path = rest.removeprefix("//") if rest.startswith("///") else rest
    if not path or path.startswith("//"):
        raise OnceMQError('name the directory: "file:./data", or "file:/var/lib/data"')
    return path


def _token(token: str | None, token_file: str | os.PathLike[str] | None) -> Token | None:
    if token:
        return Token(token)
    if not token_file:
        return None
    try:
        return Token.load(Path(token_file))
    except (UnsafeSetting, OSError) as wrong:
        raise OnceMQError(f"the token cannot be read: {wrong}") from wrong


class _NetworkWay:
    """A node that is called over the network. See `Way`."""

    def __init__(
        self,
        address: Address,
        token: Token | None,
        tls: Tls | None,
        timeout_s: float,
        awake_s: float,
    ) -> None:
        self._address = address
        self._token = token
        self._tls = tls
        self._timeout_s = timeout_s
        self._awake_s = awake_s

    def open(self) -> Opened:
        # Only here, so that `import oncemq` costs whoever embeds a node no network.
        from idl.orb import NetworkOrb

        try:
            # Half of the time for one attempt: there is time for another.
            orb = NetworkOrb(
                tls=self._tls,
                token=self._token,
                timeout_s=self._timeout_s / 2,
                awake_s=self._awake_s,
            )
        except UnsafeSetting as wrong:
            raise OnceMQError(str(wrong)) from wrong
        return Opened(orb, self._address, NETWORK, None, orb.close)


class _EmbeddedWay:
    """A node in this process. See `Way`."""

    def __init__(self, scheme: str, place: str) -> None:
        self._scheme = scheme
        self._place = place

    def open(self) -> Opened:
        # Only here: who talks to a server has no use for the servers' own modules.
        from clients.embedded import opened

        runtime = opened(self._scheme, self._place)
        return Opened(runtime.orb, runtime.address, runtime, runtime.address, runtime.release)
